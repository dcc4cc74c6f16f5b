"""``/debug`` on the meta port: what a process does, for who is on its machine."""
