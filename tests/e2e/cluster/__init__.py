"""End-to-end tests in a cluster: several servers, several nodes, and a Kubernetes API."""
