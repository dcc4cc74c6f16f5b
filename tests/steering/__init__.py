"""Tests of steering: redirecting connections to nodes to the server."""
