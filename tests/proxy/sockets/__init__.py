"""Proxy sockets: tests."""
