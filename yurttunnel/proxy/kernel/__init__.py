"""Kernel mode: the kernel carries the bytes, and this process ejects dead endpoints."""
