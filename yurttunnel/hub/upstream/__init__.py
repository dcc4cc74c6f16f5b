"""The API servers: which is healthy, connections to them, and forwarding."""
