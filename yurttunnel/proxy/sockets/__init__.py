"""Local sockets that portals lead to, and what carries their clients' bytes to endpoints."""
