"""Support for tests of proxy sockets: a reactor turned by tests, endpoints, clients, a picker."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import select
import socket
import time
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Any

from twisted.internet.task import Clock
from zope.interface import implementer

from tests.black_hole import BlackHole
from tests.peer import Peer
from tests.proxy.services import key, service
from yurttunnel.proxy.interfaces import IEndpointPicker
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.sockets.tcp import tcp_proxy_sockets
from yurttunnel.proxy.state.virtual_services import Endpoint, VirtualService
from yurttunnel.tunnel.direct.descriptors import DescriptorSet

SECONDS = 30.0
"""The timeout for events that must happen."""

LOOPBACK = {4: "127.0.0.1", 6: "::1"}


class HandReactor(Clock):
    """Timers of a :class:`Clock`, and real descriptors that are served by :meth:`turn`."""

    threadCallQueue = ()

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        """Serve it."""
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """Stop serving it."""
        self.readers.remove(reader)

    def turn(self) -> None:
        """Serve what is ready, but no timers of later turns."""
        for reader in list(self.readers):
            reader.doRead()
        self.advance(0)

    def until(self, condition: Callable[[], object]) -> None:
        """Serve what becomes ready, until ``condition()`` is true."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"after {SECONDS:.0f} s it has not happened")
            select.select([one for one in self.readers if one.fileno() >= 0], [], [], 0.001)
            self.turn()


@implementer(IEndpointPicker)
class FakePicker:
    """Picks the first that was not tried, or else the first; records reports."""

    def __init__(self, endpoints: Collection[Endpoint] = ()) -> None:
        self.endpoints = list(endpoints)
        self.clients: list[str] = []
        self.stand: list[Endpoint] = []
        self.failures: list[tuple[Endpoint, str]] = []
        self.counted = 0

    def pick(self, client: str, tried: Collection[Endpoint]) -> Endpoint | None:
        """See :class:`IEndpointPicker`."""
        self.clients.append(client)
        left = [one for one in self.endpoints if one not in tried] or self.endpoints
        if not left:
            return None
        self.counted += 1
        return left[0]

    def connected(self, endpoint: Endpoint) -> None:
        """See :class:`IEndpointPicker`."""
        self.stand.append(endpoint)

    def failed(self, endpoint: Endpoint, why: str) -> None:
        """See :class:`IEndpointPicker`."""
        self.failures.append((endpoint, why))
        self.counted -= 1

    def ended(self, endpoint: Endpoint) -> None:
        """See :class:`IEndpointPicker`."""
        self.counted -= 1
        if endpoint in self.stand:
            self.stand.remove(endpoint)


class ProxyPeer(Peer):
    """One end of a connection with much data, of which only the beginning is stored."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.size = 0
        self.hash = hashlib.sha256()

    def acquire(self, data: bytes) -> None:
        """Record what has arrived."""
        self.hash.update(data)
        self.size += len(data)
        super().acquire(data[: 1000 - len(self.received)])

    def send_some(self, data: memoryview) -> memoryview:
        """Send what the kernel accepts; return the rest."""
        with contextlib.suppress(BlockingIOError):
            while data:
                data = data[self.socket.send(data[: 1 << 18]) :]
        return data

    def end(self) -> None:
        """Close the sending direction."""
        self.socket.shutdown(socket.SHUT_WR)


class Backend:
    """An endpoint that listens on loopback."""

    def __init__(self, version: int = 4) -> None:
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        self.socket = socket.create_server((LOOPBACK[version], 0), family=family)
        self.socket.setblocking(False)
        self.endpoint = endpoint_at(self.socket)

    def accept(self) -> ProxyPeer | None:
        """Return a connection, if one has arrived."""
        with contextlib.suppress(BlockingIOError):
            return ProxyPeer(self.socket.accept()[0])
        return None


def endpoint_at(bound: socket.socket) -> Endpoint:
    """Return the endpoint of a bound socket."""
    host, port = bound.getsockname()[:2]
    return Endpoint(ip_address(host), port)


def refusing(version: int = 4) -> tuple[socket.socket, Endpoint]:
    """Return an endpoint that refuses, and the socket that reserves its port."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    held = socket.socket(family)
    held.bind((LOOPBACK[version], 0))
    return held, endpoint_at(held)


class SilentEndpoint(BlackHole):
    """An endpoint that does not respond."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint's address."""
        return endpoint_at(self.socket)


def service_of(*endpoints: Endpoint, version: int = 4, proxy_protocol: int = 0) -> VirtualService:
    """Return a virtual service with ``endpoints``."""
    return service(endpoints, key=key(version=version), proxy_protocol=proxy_protocol)


def descriptors_in_use() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


class TcpLab:
    """Makes TCP proxy sockets; ``test`` cleans up."""

    def __init__(self, test: Any, *, max_connections: int = 1000, **context: Any) -> None:
        self.test = test
        self.reactor = HandReactor()
        self.descriptors = DescriptorSet(self.reactor)
        made = tcp_proxy_sockets(self.reactor, self.descriptors, PortAllocator(), max_connections)
        self.sockets = dataclasses.replace(made, **context)
        test.addCleanup(self.sockets.close)
        self.count = self.sockets.connections
        self.pipes, self.half_closed = made.relay.pipes, made.relay.half_closed
        self.until = self.reactor.until

    def backend(self, version: int = 4) -> Backend:
        """Make an endpoint that listens."""
        backend = Backend(version)
        self.test.addCleanup(backend.socket.close)
        return backend

    def refusing(self, version: int = 4) -> Endpoint:
        """Make an endpoint that refuses."""
        held, endpoint = refusing(version)
        self.test.addCleanup(held.close)
        return endpoint

    def black_hole(self) -> SilentEndpoint:
        """Make an endpoint that does not respond."""
        hole = SilentEndpoint()
        self.test.addCleanup(hole.close)
        return hole

    def open(self, *endpoints: Endpoint, **service: Any) -> tuple[Any, FakePicker]:
        """Open a proxy socket for endpoints."""
        picker = FakePicker(endpoints)
        opened = self.sockets.open(service_of(*endpoints, **service), picker)
        self.test.addCleanup(self.stop, opened)
        return opened, picker

    def stop(self, opened: Any) -> None:
        """Stop a proxy socket, if the test has not."""
        if opened._listening.fileno() < 0:
            return
        stopped: list[object] = []
        opened.stop(0.0).addCallback(stopped.append)
        self.reactor.advance(0)
        self.until(lambda: stopped)

    def client(self, opened: Any, version: int = 4, source: str = "") -> ProxyPeer:
        """Connect to a proxy socket, from an address of the machine."""
        target = LOOPBACK[version], opened.port
        peer = ProxyPeer(socket.create_connection(target, source_address=(source, 0)))
        self.test.addCleanup(peer.socket.close)
        return peer

    def accepted(self, backend: Backend) -> ProxyPeer:
        """Return the next connection to ``backend``."""
        found: list[ProxyPeer] = []

        def has_come() -> bool:
            peer = backend.accept()
            if peer is not None:
                found.append(peer)
            return peer is not None

        self.until(has_come)
        self.test.addCleanup(found[0].socket.close)
        return found[0]

    def join(
        self, opened: Any, backend: Backend, version: int = 4, source: str = ""
    ) -> tuple[ProxyPeer, ProxyPeer]:
        """Connect a client; return it, and the endpoint's end."""
        client = self.client(opened, version, source)
        return client, self.accepted(backend)
