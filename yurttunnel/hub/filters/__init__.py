"""Changes of what clients of the node see of objects."""
