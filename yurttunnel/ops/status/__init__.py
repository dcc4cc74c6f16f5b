"""The status page at ``/`` of the meta port: what an operator wants to know, in one look."""
