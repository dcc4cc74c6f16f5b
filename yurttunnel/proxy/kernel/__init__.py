"""Kernel mode: the kernel carries the bytes, this process sees to it that endpoints answer."""
