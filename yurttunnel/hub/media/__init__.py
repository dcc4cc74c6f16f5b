"""Bodies of the Kubernetes API, parsed and built without schemas and without I/O."""
