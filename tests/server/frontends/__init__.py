"""The entries for callers."""
