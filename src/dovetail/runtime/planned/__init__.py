"""From a plan to a run: what its units are here, which workers that gives, and what its stages took."""
