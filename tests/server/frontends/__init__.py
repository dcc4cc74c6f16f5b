"""The ways in for callers."""
