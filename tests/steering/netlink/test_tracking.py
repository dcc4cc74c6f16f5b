"""Connections that go on when the rules are gone that have led them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.network.namespaces import wait_for_ipv6
from tests.steering.netlink.support import KernelTestCase, command, run_at_once
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import expressions, own_table
from yurttunnel.steering.netlink.tracking import TABLE, Tracking

FLAG = "--enable-iptables"
EDGE, OWN = "10.20.0.1", "10.20.0.9"
KUBELET, SERVER = 10250, 10270

EDGE_6, OWN_6 = "fd00:20::1", "fd00:20::9"

SECONDS = 5.0
"""How long a byte may take on a loaded machine."""

FLUSHES = {
    "nft": (("{} -t nat -F", "{} -t nat -X"), ("nft flush ruleset",)),
    "legacy": (("{} -w 20 -t nat -F", "{} -w 20 -t nat -X"),),
}
"""How somebody removes all rules there are, those of the server among them, by the back end."""


class KernelTests(KernelTestCase):
    """The kernel alone knows what becomes of a connection."""

    addresses = (OWN,)

    def setUp(self):
        """Have a way to the node, which is not here, and listeners that connections are led to."""
        super().setUp()
        # Packets that are not led go to the default route: a pair of interfaces with nobody there.
        command("ip", "link", "add", "name", "site", "type", "veth", "peer", "name", "nobody")
        for interface in ("site", "nobody"):
            command("ip", "link", "set", interface, "addrgenmode", "none", "up")
        command("ip", "route", "add", "default", "dev", "site", "src", OWN)
        command("ip", "address", "add", f"{OWN_6}/128", "dev", "lo", "nodad")
        wait_for_ipv6()
        command("ip", "-6", "route", "add", "default", "dev", "site", "src", OWN_6)
        self.tracking = Tracking(run_at_once, FLAG, lambda: [SERVER])

    def connected(self, program):
        """Connect to the node through a rule; give both ends."""
        version, edge, own = (6, EDGE_6, OWN_6) if "6" in program else (4, EDGE, OWN)
        lead = f"[{own}]:{SERVER}" if version == 6 else f"{own}:{SERVER}"
        rule = f"-p tcp -d {edge} --dport {KUBELET} -j DNAT --to-destination {lead}"
        command(program, "-w", "-t", "nat", "-A", "OUTPUT", *rule.split())
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        with socket.create_server((own, SERVER), family=family) as listener:
            client = socket.create_connection((edge, KUBELET), SECONDS)
            self.addCleanup(client.close)
            server, _ = listener.accept()
        self.addCleanup(server.close)
        server.settimeout(SECONDS)
        return client, server

    def go_on(self, client, server):
        """Require that each end hears the other."""
        for one, other in ((client, server), (server, client)):
            one.send(b"?")
            self.assertEqual(b"?", other.recv(10))

    def outlives(self, program, flush):
        """Require that a connection by a rule of ``program`` goes on after a flush."""
        ends = self.connected(program)
        for words in flush:
            command(*words.format(program).split())
            self.go_on(*ends)
        self.go_on(*ends)

    def test_flushed_nft(self):
        """What rules of nft have led outlives them, and the chains, in both families."""
        self.tracking.startService()
        for flush in FLUSHES["nft"]:
            for program in ("iptables-nft", "ip6tables-nft"):
                self.outlives(program, flush)
        self.tracking.stopService()

    def test_flushed_legacy(self):
        """The same of legacy rules."""
        self.tracking.startService()
        for flush in FLUSHES["legacy"]:
            for program in ("iptables-legacy", "ip6tables-legacy"):
                self.outlives(program, flush)
        self.tracking.stopService()

    def test_last_bytes(self):
        """What was sent last, and is not delivered yet when the process stops, is waited for."""
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
        command("nft", "flush", "ruleset")
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
        self.assertEqual("", command("nft", "list", "tables"))

    def test_without(self):
        """Nothing else does that, so these tests show something."""
        client, server = self.connected("iptables-nft")
        command("iptables-nft", "-t", "nat", "-F")
        server.settimeout(0.3)
        client.send(b"?")
        self.assertRaises(TimeoutError, server.recv, 10)

    def test_of_the_process(self):
        """Each server has a table of its own as long as it runs, which nobody can remove."""
        other = Tracking(run_at_once, FLAG, lambda: [SERVER])
        self.tracking.startService()
        other.startService()
        self.assertEqual(2, command("nft", "list", "tables").count(f"table inet {TABLE}"))
        command("nft", "flush", "ruleset")
        other.stopService()
        self.assertEqual(1, command("nft", "list", "tables").count(f"table inet {TABLE}"))
        self.tracking.stopService()
        self.assertEqual("", command("nft", "list", "tables"))

    def test_kernels_without_it(self):
        """What a kernel refuses is told, with what it takes; nothing of it stays."""
        for module, name, bad in ((own_table, "_OWNER", 1 << 30), (expressions, "CT_STATE", 99)):
            self.patch(module, name, bad)
            refused = Tracking(run_at_once, FLAG, lambda: [SERVER])
            with capturedLogs() as logged:
                refused.startService()
            [event] = logged
            self.assertIn("takes nf_tables of Linux 5.12 or later", event["error"])
            self.assertEqual("", command("nft", "list", "tables"))
            refused.stopService()


class StoppedTests(SynchronousTestCase):
    """A stop before the kernel has answered."""

    def test_table_comes_late(self):
        """It is let go as it comes."""
        answer = Deferred()
        service = Tracking(lambda job: answer, FLAG, list)
        service.startService()
        stopped = service.stopService()
        self.assertNoResult(stopped)
        table = Table()
        answer.callback(table)
        self.assertTrue(table.closed)
        self.successResultOf(stopped)

    def test_a_kernel_that_does_not_tell(self):
        """What has been delivered is not waited for when the kernel is too busy to tell."""
        answers = [succeed(Table()), fail(SteeringFailed("it is busy"))]
        service = Tracking(lambda job: answers.pop(0), FLAG, list)
        service.startService()
        self.successResultOf(service.stopService())
        self.assertEqual([], answers)

    def test_refusal(self):
        """A refusal is told, and is no failure of the server."""
        answer = Deferred()
        service = Tracking(lambda job: answer, FLAG, list)
        service.startService()
        with capturedLogs() as logged:
            answer.errback(SteeringFailed("it is broken"))
        [event] = logged
        self.assertEqual("it is broken", event["error"])
        service.stopService()


class Table:
    """One that can be closed."""

    closed = False

    def close(self):
        """Be closed."""
        self.closed = True
