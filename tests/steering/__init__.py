"""Steering: the callers of nodes are led to the server."""
