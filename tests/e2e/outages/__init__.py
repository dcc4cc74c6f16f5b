"""Faults of networks, of machines and of their resources, each with what must hold (testing.md)."""
