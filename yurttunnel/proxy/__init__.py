"""Services on the node: portals led to endpoints, in user space or by the kernel, with retry."""
