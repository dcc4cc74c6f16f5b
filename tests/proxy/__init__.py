"""The service proxy: tests."""
