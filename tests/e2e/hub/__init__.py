"""``twist yurthub`` as a process, between the clients of a node and an API that goes away."""
