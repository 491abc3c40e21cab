"""The version of Dovetail, for those who must not import all of it to know."""

__version__ = "0.1.0"
