"""The planners that the exact one is compared with: HeterPS' own by RL, searches, and rules of thumb."""
