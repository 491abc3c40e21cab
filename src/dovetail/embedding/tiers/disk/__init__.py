"""The disk tier: a log of checksummed records in segment files."""
