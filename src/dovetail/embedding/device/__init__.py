"""Rows on a GPU: what finds them there, steps them, and brings them up before they are needed."""
