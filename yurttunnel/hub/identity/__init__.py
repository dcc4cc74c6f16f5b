"""The hub's identity: its node for the API servers, and the API for pods."""
