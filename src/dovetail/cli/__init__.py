"""The command line: the only place where parts are wired together, and where errors are shown."""
