"""Everything that is needed, side by side: load, nginx, and the service proxy."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.load import Driver, build
from benchmarks.nginx import Nginx
from benchmarks.processes import BenchmarkFailed, resident
from benchmarks.proxy.loads import MEBIBYTE, Loads, Scale, Way
from benchmarks.proxy.peer import Peer
from benchmarks.proxy.proxy import ServiceProxy


class Bench(Loads):
    """Starts everything in ``directory``; it ends with ``stack``."""

    def __init__(self, stack: ExitStack, directory: Path, nginx: Nginx, scale: Scale) -> None:
        super().__init__(scale)
        address = _own_address()
        # The backend with TLS, which nobody asks here, wants a certificate.
        identity = Authority(directory).issue("bench")
        driver = stack.enter_context(Driver(build(directory), identity, address=address))
        behind = address, driver.plain_port, driver.echo_port
        peer = Peer(stack, directory, nginx, *behind)
        self.proxy = stack.enter_context(ServiceProxy(directory, *behind))
        self.direct = Way(driver, *behind)
        self.nginx = Way(driver, address, peer.port, peer.port, peer.pids)
        self.ours = Way(driver, address, self.proxy.port, self.proxy.port, [self.proxy.pid])

    def resident(self) -> float:
        """Return the resident memory of the proxy in MiB."""
        return resident(self.proxy.pid) / MEBIBYTE


def _own_address() -> str:
    """Return an address of this machine that is not loopback, as endpoints must not be."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing; the address is one that nobody has (RFC 5737).
            probe.connect(("203.0.113.1", 9))
        except OSError as error:
            raise BenchmarkFailed(
                f"this machine has no address but those of loopback ({error.strerror}): give it one"
                " and a default route"
            ) from None
        address: str = probe.getsockname()[0]
        return address
