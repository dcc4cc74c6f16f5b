"""An embedded Kubernetes API: in memory, for one machine."""
