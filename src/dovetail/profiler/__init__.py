"""How fast each layer is on the machine at hand, what it moves, and what it holds."""
