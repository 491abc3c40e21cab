"""Starting a run: its folder, its keys, its processes; and starting again what dies."""
