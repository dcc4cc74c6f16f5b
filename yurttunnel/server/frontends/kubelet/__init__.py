"""Requests to kubelets: received as HTTP, and forwarded through the tunnel."""
