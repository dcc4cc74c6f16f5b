"""Bodies of the Kubernetes API, cut and built without schemas, and without input or output."""
