"""Deliberate defects that show what the tests detect: ``tox run -e mutation``."""
