"""The cost of the rules for a new connection, by the number of nodes in them.

Each case has its own network namespace, with a listener and the rules of a server that was killed;
one of them has no rules. The cases alternate, so that a machine that slows down meanwhile does not
affect the ratios. CPU time is measured, which the kernel charges to the connecting process for a
connection within one machine: it depends little on other load.
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

from benchmarks.steering_manager import FIRST_EDGE, MAX_SYNC_SECONDS, SECURE_PORT, run_manager
from tests.e2e.network.namespaces import Namespace
from yurttunnel.steering.interception import Match
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT

OWN_ADDRESS = IPv4Address("10.0.0.1")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""For SO_LINGER: no port stays in TIME_WAIT, otherwise the ports would soon be used up."""


@dataclass(frozen=True, slots=True)
class Case:
    """Rules that use ``match`` for ``nodes`` edge nodes and as many cloud nodes."""

    match: Match
    nodes: int


@dataclass(frozen=True, slots=True)
class Rate:
    """New connections per second of CPU time with the rules of ``case``.

    ``ratio`` is the ratio to the rate without rules in the same round.
    """

    case: Case
    rate: float
    ratio: float


def measure(backend: str, cases: Sequence[Case], rounds: int, connections: int) -> list[Rate]:
    """Make ``connections`` in each case, ``rounds`` times alternately; return the medians."""
    with ExitStack() as stack:
        without = stack.enter_context(_environment(backend, None))
        environments = [stack.enter_context(_environment(backend, case)) for case in cases]
        rates: list[list[float]] = [[] for _ in cases]
        ratios: list[list[float]] = [[] for _ in cases]
        for _ in range(rounds):
            plain = without.rate(connections)
            for index, environment in enumerate(environments):
                rate = environment.rate(connections)
                rates[index].append(rate)
                ratios[index].append(rate / plain)
    return [
        Rate(case, statistics.median(rates[index]), statistics.median(ratios[index]))
        for index, case in enumerate(cases)
    ]


@dataclass(frozen=True, slots=True)
class _Environment:
    """A network namespace, a listener in it, and destinations that lead to the listener."""

    namespace: Namespace
    listener: socket.socket
    destinations: Sequence[tuple[str, int]]

    def rate(self, connections: int) -> float:
        """Connect repeatedly, one at a time; return the connections per second of CPU time."""
        with self.namespace.inside():
            began = time.process_time()
            for number in range(connections):
                with socket.socket() as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    client.settimeout(MAX_SYNC_SECONDS)
                    client.connect(self.destinations[number % len(self.destinations)])
                    # This shows that the connection reached the right listener.
                    self.listener.accept()[0].close()
            return connections / (time.process_time() - began)


@contextmanager
def _environment(backend: str, case: Case | None) -> Generator[_Environment]:
    with closing(Namespace()) as namespace:
        for command in (
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
            listener.settimeout(MAX_SYNC_SECONDS)
            yield _Environment(namespace, listener, destinations)
