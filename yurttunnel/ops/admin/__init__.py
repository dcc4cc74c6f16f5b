"""What the commands ask a running process: pages on a Unix socket, for its user and root."""
