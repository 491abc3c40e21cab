"""The default policy: the exact optimum of the delay worked off a second; docs/concepts/costates.md derives it."""
