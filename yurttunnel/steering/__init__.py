"""Steering the cluster's traffic to the server: firewall rules and DNS records."""
