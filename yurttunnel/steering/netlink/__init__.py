"""Access to the kernel's sets of addresses and its conntrack table by netlink.

pyroute2 encodes the requests. Replies are parsed here, because its classes take a quarter of a
millisecond for each connection, and hold the interpreter's lock meanwhile.
"""
