"""Transports that send at once, and TLS that processes large pieces.

Twisted's transports defer each write to the next iteration of the reactor, and its TLS delivers at
most 16 KiB at a time. The transports of this package use only public interfaces of Twisted. They
are used through :class:`~yurttunnel.tunnel.direct.reactor.DirectReactor`, and pass the same tests
as Twisted's, which can be selected instead.
"""
