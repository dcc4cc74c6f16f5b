"""Forwarding of requests to the API, and caching of the responses."""
