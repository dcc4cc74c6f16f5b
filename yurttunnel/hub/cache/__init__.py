"""The cache on disk: the last state of the API that each client has seen."""
