"""Filters: they change or hide objects in responses to clients of the node."""
