"""The admin socket: pages for the commands on a Unix socket, for the process's user and root."""
