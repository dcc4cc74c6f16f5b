"""Answers while no API server can be reached."""
