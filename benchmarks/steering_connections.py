"""What the rules cost a new connection, by the number of nodes that they know.

For each case there is a network namespace of its own, with the rules of a server that was killed
and a listener; one of them has no rules. They take turns, so that a machine that grows slower
meanwhile changes no ratio. What counts is CPU time, which the kernel spends on a connection within
one machine on behalf of who connects: it depends little on what else the machine does.
"""

from __future__ import annotations

import random
import socket
import statistics
import struct
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

from benchmarks.steering_manager import FIRST_EDGE, LONGEST, SECURE_PORT, run_manager
from tests.e2e.network.namespaces import Namespace
from yurttunnel.steering.interception import Match
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT

OWN_ADDRESS = IPv4Address("10.0.0.1")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""For SO_LINGER: no port is kept busy after the end, else there would soon be none left."""


@dataclass(frozen=True, slots=True)
class Case:
    """Rules that choose by ``match`` among ``nodes`` edge nodes and as many cloud nodes."""

    match: Match
    nodes: int


@dataclass(frozen=True, slots=True)
class Rate:
    """New connections per second of CPU time with the rules of ``case``.

    ``ratio`` is that to the rate without rules, of the same round.
    """

    case: Case
    rate: float
    ratio: float


def measure(backend: str, cases: Sequence[Case], rounds: int, connections: int) -> list[Rate]:
    """Have the cases take turns: ``connections`` each, ``rounds`` times; the medians of it."""
    with ExitStack() as stack:
        without = stack.enter_context(_place(backend, None))
        places = [stack.enter_context(_place(backend, case)) for case in cases]
        rates: list[list[float]] = [[] for _ in cases]
        ratios: list[list[float]] = [[] for _ in cases]
        for _ in range(rounds):
            plain = without.rate(connections)
            for index, place in enumerate(places):
                rate = place.rate(connections)
                rates[index].append(rate)
                ratios[index].append(rate / plain)
    return [
        Rate(case, statistics.median(rates[index]), statistics.median(ratios[index]))
        for index, case in enumerate(cases)
    ]


@dataclass(frozen=True, slots=True)
class _Place:
    """A network namespace, a listener in it, and what connections that reach it ask for."""

    namespace: Namespace
    listener: socket.socket
    destinations: Sequence[tuple[str, int]]

    def rate(self, connections: int) -> float:
        """Connect again and again, one connection at a time; connections per second of CPU time."""
        with self.namespace.inside():
            began = time.process_time()
            for number in range(connections):
                with socket.socket() as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    client.settimeout(LONGEST)
                    client.connect(self.destinations[number % len(self.destinations)])
                    # A listener of another place would not have it.
                    self.listener.accept()[0].close()
            return connections / (time.process_time() - began)


@contextmanager
def _place(backend: str, case: Case | None) -> Generator[_Place]:
    with closing(Namespace()) as namespace:
        for command in (
            "ip link set lo up",
            f"ip address add {OWN_ADDRESS}/32 dev lo",
            f"ip route add default dev lo src {OWN_ADDRESS}",
        ):
            namespace.run(*command.split())
        with namespace.inside():
            listener = socket.create_server(("", SECURE_PORT))
            destinations = [(str(OWN_ADDRESS), SECURE_PORT)]
            if case is not None:
                run_manager(backend, case.match, case.nodes, "--leave")
                picked = random.Random(0).choices(range(case.nodes), k=100)
                destinations = [(str(FIRST_EDGE + number), KUBELET_PORT) for number in picked]
        with listener:
            listener.settimeout(LONGEST)
            yield _Place(namespace, listener, destinations)
