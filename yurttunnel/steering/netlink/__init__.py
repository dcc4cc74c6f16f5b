"""The kernel's sets of addresses and its table of connections, by netlink.

pyroute2 writes the requests. What comes back is read here: its classes take a quarter of a
millisecond for each connection, and hold the interpreter's lock meanwhile.
"""
