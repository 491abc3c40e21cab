"""Starting a run's processes, here and on other hosts; and starting again what dies."""
