"""``twist yurtproxy`` as a process on a node, between clients and endpoints in other networks."""
