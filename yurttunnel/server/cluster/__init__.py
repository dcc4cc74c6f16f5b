"""What the server knows of the cluster that it runs in."""
