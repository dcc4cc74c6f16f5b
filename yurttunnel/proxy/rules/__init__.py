"""The firewall rules that redirect portals to sockets or endpoints."""
