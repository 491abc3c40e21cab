"""What a second of a job's work is worth, from the delay it saves everybody; docs/concepts/costates.md derives it."""
