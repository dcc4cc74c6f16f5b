"""Networks of several machines, each a network namespace of this one."""
