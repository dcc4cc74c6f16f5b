"""Requests on their way to the API, and what of the answers is kept."""
