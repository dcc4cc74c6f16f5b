"""Clients of one agent whose addresses lead to the same server."""

from __future__ import annotations

import random

from tests.agent.clients import ClientTestCase
from tests.agent.replicas import ReplicaTests
from yurttunnel.agent.connection_group import (
    FIRST_DELAY,
    FREQUENT_PROBES,
    MAX_DELAY,
    MAX_PROBE_DELAY,
    URGENT_DELAY,
    URGENT_PROBES,
)
from yurttunnel.wire.codes import Code


class SameServerTests(ReplicaTests):
    """Two clients of one agent that have dialed one server process at the same moment."""

    expected = None

    def setUp(self):
        """Let the server accept the second client's session in addition to the first."""
        super().setUp()
        self.replica("a", "b")
        self.use("a", "b")
        self.pass_time(2)

    def clients(self):
        """Return the client that stands by, and the one with the session."""
        clients = sorted(self.servers._clients, key=lambda client: client.connected)
        self.assertEqual(2, len(clients))
        return clients

    def restart(self):
        """Replace the server; return the new one."""
        self.behind.clear()
        old, _ = self.replicas[-1], self.replica("a", "b")
        return old

    def test_stands_by(self):
        """One client has the session, the other stands by, and streams survive."""
        near, _ = self.replicas[0].stream()
        self.pass_time(5 * MAX_PROBE_DELAY, 5)
        self.assertEqual([True, False], [client.standing_by for client in self.clients()])
        self.assertEqual([False, True], [client.connected for client in self.clients()])
        self.assertEqual(["made"], near.events)
        self.assertEqual(1, len(self.replicas[0].listener.sessions()))

    def test_log(self):
        """Standing by is logged once, without a warning about another agent."""
        self.pass_time(5 * MAX_PROBE_DELAY, 5)
        self.assertEqual([], self.warnings)
        self.assertEqual(1, sum("standing by" in text for text in self.logged))

    def test_disconnected(self):
        """While the session can be resumed, it is not replaced."""
        near, _ = self.replicas[0].stream()
        self.cut()
        self.settle()
        self.pass_time(1)
        other, client = self.clients()
        self.assertTrue(other.standing_by and client.connected)
        self.assertEqual(["made"], near.events)

    def test_left(self):
        """When the server goes away, a session with the next one starts, and again only one."""
        self.replicas[0].stream()
        leaving = self.restart()
        leaving.listener.drain("the server is about to stop")
        self.pass_time(5)
        self.assertEqual([0, 1], self.counts())
        leaving.listener.close_sessions(Code.GOING_AWAY, "over")
        self.pass_time(1)
        self.assertEqual([True, False], [client.standing_by for client in self.clients()])
        self.assertEqual([], self.warnings)

    def test_session_lost(self):
        """When the session ends, a client reconnects soon, without a warning."""
        self.patch(random, "uniform", lambda low, high: high)
        self.pass_time(5 * MAX_PROBE_DELAY, 5)
        self.replicas[0].listener.close_sessions(Code.REVOKED, "for a moment")
        self.settle()
        self.assertFalse(any(client.standing_by for client in self.clients()))
        self.pass_time(FIRST_DELAY + 0.05, 0.05)
        self.assertEqual([1], self.counts())
        self.assertEqual([], self.warnings)

    def test_restarted_server(self):
        """After a restart of the server there is one session again, of either client."""
        self.kill(self.replicas[0])
        self.restart()
        self.pass_time(3 * MAX_DELAY, 1)
        self.assertEqual([True, False], [client.standing_by for client in self.clients()])
        self.assertEqual([0, 1], self.counts())

    def test_drain(self):
        """A client that stands by ends at once, and the end of its sibling does not wake it."""
        attempts = len(self.dialed)
        self.servers.drain("the agent is about to stop")
        self.pass_time(5)
        self.assertEqual(attempts, len(self.dialed))
        self.assertEqual([], self.clock.getDelayedCalls())


class HeldTests(ClientTestCase):
    """An address that leads to a server with which another client has a session."""

    def setUp(self):
        """Have the server reject the second client."""
        super().setUp()
        self.connect()
        self.hellos = []
        received = self.listener.hello_received

        def keep(connection, hello):
            self.hellos.append(hello)
            received(connection, hello)

        self.patch(self.listener, "hello_received", keep)
        self.other = self.make_client(self.issuer.node())
        self.near, self.far = self.stream()
        self.other.start()
        self.network.settle()

    def look(self):
        """Make the second client's next look."""
        self.clock.advance(self.wait() + 1e-6)
        self.network.settle()

    def wait(self):
        """Return the seconds until the second client's next look."""
        return self.other._retry_call.getTime() - self.clock.seconds()

    def test_session_lives(self):
        """The existing session and its streams are not affected."""
        self.assertEqual((True, False), (self.client.connected, self.other.connected))
        self.near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual((["made"], b"still here"), (self.near.events, bytes(self.far.received)))
        self.assertEqual(1, len(self.listener.sessions()))

    def test_no_failure(self):
        """The rejection is not a failure: not counted, without a warning, and logged once."""
        for _ in range(3):
            self.look()
        self.assertTrue(self.other.standing_by)
        self.assertEqual((0, []), (self.other.failed_attempts, self.warnings))
        self.assertEqual(1, sum("standing by" in text for text in self.logged))

    def test_held(self):
        """HELLO names the server process of the other client's session, and no other."""
        [hello] = self.hellos
        self.assertEqual(self.listener.process.hex(), hello.properties["held"])
        self.network.cut()
        self.attempt()
        self.assertNotIn("held", self.hellos[-1].properties)

    def test_seldom(self):
        """While no server is missing, the client looks every few minutes."""
        for _ in range(20):
            self.assertTrue(MAX_PROBE_DELAY / 2 <= self.wait() <= MAX_PROBE_DELAY, self.wait())
            self.look()

    def test_wanting(self):
        """While servers are missing, it looks soon at first, and then less and less often."""
        self.group.needs_sessions = True
        self.patch(random, "uniform", lambda low, high: high)
        self.other.retry_soon()
        delays = []
        for _ in range(24):
            self.look()
            delays.append(self.wait())
        longest = [URGENT_DELAY] * FREQUENT_PROBES
        longest += [MAX_DELAY] * (URGENT_PROBES - FREQUENT_PROBES)
        longest += [MAX_PROBE_DELAY] * 4
        expected = [min(FIRST_DELAY * 2**n, each) for n, each in enumerate(longest)]
        for delay, bound in zip(delays, expected, strict=True):
            self.assertAlmostEqual(bound, delay, places=3)

    def test_lost(self):
        """When the other client's session ends, this one connects at once."""
        self.client.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.wait(), FIRST_DELAY)
        self.look()
        self.assertTrue(self.other.connected)
        self.assertFalse(self.other.standing_by)

    def test_stored_for_resumption(self):
        """While the other client's session can be resumed, it is not replaced."""
        self.network.cut()
        self.other.retry_soon(0)
        self.look()
        self.assertFalse(self.other.connected)
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(["made"], self.near.events)

    def test_draining(self):
        """A draining client holds no server: the other one takes over before it has ended."""
        self.client.drain("the address has changed")
        self.network.settle()
        self.other.retry_soon()
        self.look()
        self.assertTrue(self.other.connected)
        self.assertNotIn("held", self.hellos[-1].properties)
        self.near.transport.write(b"still here")
        self.network.pass_time(3)
        self.assertEqual((["made"], b"still here"), (self.near.events, bytes(self.far.received)))
        self.assertIs(
            self.registry.find("edge-1").tunnel.wire.peer.process, self.hellos[-1].process
        )

    def test_lost_while_it_waits(self):
        """So does one that waits after failures, however long its delay."""
        self.network.refuse()
        self.other.retry_soon()
        for _ in range(6):
            self.look()
        self.assertFalse(self.other.standing_by)
        self.other._retry_call.reset(MAX_DELAY)
        self.client.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.wait(), FIRST_DELAY)

    def test_real_failure(self):
        """A look without a response is a failure like any other."""
        self.network.refuse()
        self.look()
        self.assertEqual((1, False), (self.other.failed_attempts, self.other.standing_by))
        self.assertIn("refused", self.other.problem)
