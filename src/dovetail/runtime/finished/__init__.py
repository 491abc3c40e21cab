"""What reads a finished run: its model restored, evaluated and exported, and what the run came to."""
