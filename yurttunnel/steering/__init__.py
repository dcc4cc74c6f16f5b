"""How the cluster's traffic gets to the server: firewall rules, DNS records."""
