"""Tests of redirected connections that continue without their rules."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase, run_at_once
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import expressions, owned_table
from yurttunnel.steering.netlink.connection_tracking import TABLE, ConnectionTracking

FLAG = "--enable-iptables"
EDGE, OWN = "10.20.0.1", "10.20.0.9"
KUBELET, SERVER = 10250, 10270

EDGE_6, OWN_6 = "fd00:20::1", "fd00:20::9"

SECONDS = 5.0
"""The timeout of a byte on a loaded machine."""

FLUSHES = {
    "nft": (("{} -t nat -F", "{} -t nat -X"), ("nft flush ruleset",)),
    "legacy": (("{} -w 20 -t nat -F", "{} -w 20 -t nat -X"),),
}
"""How another program removes all rules, including the server's, by back end."""


class KernelTests(KernelTestCase):
    """Only the kernel shows what happens to a connection."""

    addresses = (OWN, OWN_6)

    def setUp(self):
        """Add a route to the node, which is elsewhere, and listeners for redirected connections."""
        super().setUp()
        # Packets that are not redirected go to the default route: a pair of interfaces without a
        # peer.
        run("ip", "link", "add", "name", "site", "type", "veth", "peer", "name", "nobody")
        for interface in ("site", "nobody"):
            run("ip", "link", "set", interface, "addrgenmode", "none", "up")
        run("ip", "route", "add", "default", "dev", "site", "src", OWN)
        run("ip", "-6", "route", "add", "default", "dev", "site", "src", OWN_6)
        self.tracking = ConnectionTracking(run_at_once, FLAG, lambda: [SERVER])

    def connected(self, program):
        """Connect to the node through a rule; return both ends."""
        version, edge, own = (6, EDGE_6, OWN_6) if "6" in program else (4, EDGE, OWN)
        lead = f"[{own}]:{SERVER}" if version == 6 else f"{own}:{SERVER}"
        rule = f"-p tcp -d {edge} --dport {KUBELET} -j DNAT --to-destination {lead}"
        run(program, "-w", "-t", "nat", "-A", "OUTPUT", *rule.split())
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        with socket.create_server((own, SERVER), family=family) as listener:
            client = socket.create_connection((edge, KUBELET), SECONDS)
            self.addCleanup(client.close)
            server, _ = listener.accept()
        self.addCleanup(server.close)
        server.settimeout(SECONDS)
        return client, server

    def send_data(self, client, server):
        """Require that data passes in both directions."""
        for one, other in ((client, server), (server, client)):
            one.send(b"?")
            self.assertEqual(b"?", other.recv(10))

    def outlives(self, program, flush):
        """Require that a connection redirected by a rule of ``program`` continues after a flush."""
        ends = self.connected(program)
        for words in flush:
            run(*words.format(program).split())
            self.send_data(*ends)
        self.send_data(*ends)

    def test_flushed_nft(self):
        """Connections redirected by nft outlive its rules and chains, in both families."""
        self.tracking.startService()
        for flush in FLUSHES["nft"]:
            for program in ("iptables-nft", "ip6tables-nft"):
                self.outlives(program, flush)
        self.tracking.stopService()

    def test_flushed_legacy(self):
        """The same with legacy rules."""
        self.tracking.startService()
        for flush in FLUSHES["legacy"]:
            for program in ("iptables-legacy", "ip6tables-legacy"):
                self.outlives(program, flush)
        self.tracking.stopService()

    def test_last_bytes(self):
        """The process waits at its stop until its last data is delivered."""
        self.tracking.startService()
        client, server = self.connected("iptables-nft")
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(b"", server.recv(1))
        server.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += server.send(bytes(65536))
        server.close()
        run("nft", "flush", "ruleset")
        stopping = threading.Thread(target=self.tracking.stopService)
        stopping.start()
        self.addCleanup(stopping.join)
        time.sleep(0.3)
        client.settimeout(SECONDS)
        received = 0
        while data := client.recv(65536):
            received += len(data)
        self.assertEqual(sent, received)
        stopping.join(SECONDS)
        self.assertEqual("", run("nft", "list", "tables"))

    def test_without(self):
        """Nothing else has this effect, so these tests are significant."""
        client, server = self.connected("iptables-nft")
        run("iptables-nft", "-t", "nat", "-F")
        server.settimeout(0.3)
        client.send(b"?")
        self.assertRaises(TimeoutError, server.recv, 10)

    def test_of_the_process(self):
        """Each server has its own table as long as it runs, which no other program can remove."""
        other = ConnectionTracking(run_at_once, FLAG, lambda: [SERVER])
        self.tracking.startService()
        other.startService()
        self.assertEqual(2, run("nft", "list", "tables").count(f"table inet {TABLE}"))
        run("nft", "flush", "ruleset")
        other.stopService()
        self.assertEqual(1, run("nft", "list", "tables").count(f"table inet {TABLE}"))
        self.tracking.stopService()
        self.assertEqual("", run("nft", "list", "tables"))

    def test_kernels_without_it(self):
        """An error of the kernel is logged with the requirement; nothing remains."""
        for module, name, bad in ((owned_table, "_OWNER", 1 << 30), (expressions, "CT_STATE", 99)):
            self.patch(module, name, bad)
            refused = ConnectionTracking(run_at_once, FLAG, lambda: [SERVER])
            with capturedLogs() as logged:
                refused.startService()
            [event] = logged
            self.assertIn("requires nf_tables of Linux 5.12 or later", event["error"])
            self.assertEqual("", run("nft", "list", "tables"))
            refused.stopService()


class StoppedTests(SynchronousTestCase):
    """A stop before the kernel has replied."""

    def test_table_comes_late(self):
        """It is closed when it arrives."""
        answer = Deferred()
        service = ConnectionTracking(lambda job: answer, FLAG, list)
        service.startService()
        stopped = service.stopService()
        self.assertNoResult(stopped)
        table = Table()
        answer.callback(table)
        self.assertTrue(table.closed)
        self.successResultOf(stopped)

    def test_a_kernel_that_does_not_respond(self):
        """There is no wait for delivery if the kernel is too busy to reply."""
        answers = [succeed(Table()), fail(SteeringFailed("it is busy"))]
        service = ConnectionTracking(lambda job: answers.pop(0), FLAG, list)
        service.startService()
        self.successResultOf(service.stopService())
        self.assertEqual([], answers)

    def test_refusal(self):
        """An error is logged, and is no failure of the server."""
        answer = Deferred()
        service = ConnectionTracking(lambda job: answer, FLAG, list)
        service.startService()
        with capturedLogs() as logged:
            answer.errback(SteeringFailed("it is broken"))
        [event] = logged
        self.assertEqual("it is broken", event["error"])
        service.stopService()


class Table:
    """A table that can be closed."""

    closed = False

    def close(self):
        """Record that it is closed."""
        self.closed = True
