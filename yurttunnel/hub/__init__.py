"""yurthub: the node's proxy to the Kubernetes API, which serves from a cache while offline."""
