"""yurthub: the node's way to the Kubernetes API, which answers from a cache without the cloud."""
