"""The Kubernetes API as its clients here need it: calls, informers, leases and events."""
