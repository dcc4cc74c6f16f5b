"""Responses while no API server is reachable."""
