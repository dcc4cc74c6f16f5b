"""Deliberate defects, to see which of them the tests find: ``tox run -e mutation``."""
