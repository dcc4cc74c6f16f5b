"""What a request to the Kubernetes API asks for, who asks, and in which form."""
