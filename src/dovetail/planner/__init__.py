"""Which layers on which type, on how many units."""
