"""Services on the node: portals lead to endpoints, in user space or in the kernel, with retries."""
