"""The status page at ``/`` of the meta port: the state of a process at a glance."""
