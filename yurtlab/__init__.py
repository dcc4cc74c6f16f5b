"""A Kubernetes API and a node in one process, for demonstrations and tests."""
