"""Tests of open connections by the destination of their clients."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.network.namespaces import run
from tests.proxy.services import key, service
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy.kernel import connection_counts as module
from yurttunnel.proxy.kernel.connection_counts import ActiveConnections, active_connections
from yurttunnel.proxy.state.virtual_services import Portal, PortalKind, Protocol

OWN, PORTAL = "10.20.0.9", "10.96.0.1"
SECONDS = 30.0
"""How long a packet may take on a loaded machine, in seconds."""


def portal(address, port=80):
    """Make a portal; a node port if there is no address."""
    if address is None:
        return Portal(PortalKind.NODE_PORT, None, port)
    return Portal(PortalKind.CLUSTER_IP, ip_address(address), port)


class ActiveConnectionsTests(SynchronousTestCase):
    """Which connections belong to a service."""

    def test_of(self):
        """Those to its portals count, of its protocol and family; a node port is at own
        addresses.
        """
        other, third = (ip_address(text).packed for text in ("10.96.0.2", "fd00::1"))
        counted = {
            (6, ip_address(PORTAL).packed, 80): 3,
            (17, ip_address(PORTAL).packed, 80): 4,
            (6, other, 80): 5,
            (6, other, 30080): 6,
            (6, ip_address(PORTAL).packed, 30080): 7,
            (6, third, 30080): 8,
            (6, third, 80): 9,
        }
        active = ActiveConnections(counted, {other, third})
        for expected, version, protocol, *portals in (
            (3, 4, Protocol.TCP, portal(PORTAL)),
            (4, 4, Protocol.UDP, portal(PORTAL)),
            (0, 4, Protocol.TCP, portal(PORTAL, 81)),
            (6, 4, Protocol.TCP, portal(None, 30080)),
            (8, 6, Protocol.TCP, portal(None, 30080)),
            (9, 4, Protocol.TCP, portal(PORTAL), portal(None, 30080)),
            (13, 4, Protocol.TCP, portal(PORTAL, 30080), portal(None, 30080)),
            (9, 6, Protocol.TCP, portal("fd00::1")),
            (0, 4, Protocol.TCP),
        ):
            its = service([1], key=key("web", protocol, version), portals=portals)
            self.assertEqual(expected, active.of(its), (version, protocol, portals))


class KernelTableTests(KernelTestCase):
    """Connections to this machine, some of which are translated."""

    addresses = (OWN,)

    def test_table(self):
        """Translated connections count until they are closed."""
        rules = f"ip daddr {PORTAL} meta l4proto {{ tcp, udp }} dnat to {OWN}:7000;"
        chain = f"chain out {{ type nat hook output priority -100; {rules} }};"
        run("nft", f"table ip led {{ {chain} }};")
        run("ip", "route", "add", "local", f"{PORTAL}/32", "dev", "lo")
        listening = socket.create_server((OWN, 7000))
        self.addCleanup(listening.close)
        listening.settimeout(SECONDS)
        clients = [self.connected((host, port)) for host, port in ((PORTAL, 80), (OWN, 7000))]
        over = self.connected((PORTAL, 80))
        datagrams = socket.socket(type=socket.SOCK_DGRAM)
        self.addCleanup(datagrams.close)
        datagrams.sendto(b"?", (PORTAL, 53))
        accepted = [listening.accept()[0] for _ in range(3)]
        for each in accepted:
            self.addCleanup(each.close)
        self.assertEqual((2, 1), self.counted())
        over.close()
        accepted[2].close()
        self.assertEqual((1, 1), self.counted())
        self.patch(module, "MAX_SECONDS", 0.0)
        self.assertIsNone(active_connections((4, 6)))
        for each in clients:
            each.close()

    def connected(self, where):
        """Connect to an address."""
        client = socket.create_connection(where, SECONDS)
        self.addCleanup(client.close)
        return client

    def counted(self):
        """Return the numbers of TCP and UDP connections."""
        active = active_connections((4, 6))
        return tuple(
            active.of(service([1], key=key("web", protocol), portals=[portal(PORTAL, port)]))
            for protocol, port in ((Protocol.TCP, 80), (Protocol.UDP, 53))
        )
