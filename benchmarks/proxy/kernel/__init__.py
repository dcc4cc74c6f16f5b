"""The benchmark of the service proxy in kernel mode."""
