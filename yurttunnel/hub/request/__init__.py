"""The parsed request to the Kubernetes API: its content, its caller, and the accepted forms."""
