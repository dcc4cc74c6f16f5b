"""``/debug`` on the meta port: the internals of a process, for users of its machine."""
