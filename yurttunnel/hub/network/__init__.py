"""The network interface with the address at which pods reach the hub."""
