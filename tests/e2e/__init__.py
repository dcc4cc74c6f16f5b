"""Whole programs as real processes, with real clients, over loopback."""
