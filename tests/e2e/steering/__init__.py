"""End-to-end tests of the steering of the cluster's traffic to the server."""
