"""End-to-end tests of the ways on which the cluster's traffic gets to the server."""
