"""Local sockets that portals are redirected to, and the relays between clients and endpoints."""
