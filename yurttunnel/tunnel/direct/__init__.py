"""Transports that send when they are asked to, and TLS that works in large pieces.

Twisted's transports put each write off to the next turn of the reactor, and its TLS hands on at
most 16 KiB at a time. They stand on public interfaces only, are used through
:class:`~yurttunnel.tunnel.direct.reactor.DirectReactor`, and run the same tests as Twisted's,
which stay selectable.
"""
