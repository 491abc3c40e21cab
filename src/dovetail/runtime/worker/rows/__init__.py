"""Rows of embedding tables at a worker: keys to ask for, rows that come or are kept, and layers that look them up."""
