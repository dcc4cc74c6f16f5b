"""The benchmark of the service proxy."""
