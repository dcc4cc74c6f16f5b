"""Everything on one machine: an embedded Kubernetes API, the tunnel and an edge node."""
