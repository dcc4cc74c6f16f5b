"""The API servers: health checks, connections, and the hub's own requests."""
