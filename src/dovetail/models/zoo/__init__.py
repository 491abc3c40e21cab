"""The built-in models, one a file; `dovetail.models.load` knows them by name."""
