"""A server's redo log: its records, the ring they are written through, copies on other servers, and coming back."""
