"""A client for the Kubernetes API, with informers, leases and events."""
