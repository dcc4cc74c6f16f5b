"""``twist yurthub`` as a process, between a node's clients and an API with outages."""
