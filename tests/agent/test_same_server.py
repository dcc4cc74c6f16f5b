"""Clients of one agent whose addresses lead to one server."""

from __future__ import annotations

import random

from tests.agent.clients import ClientTestCase
from yurttunnel.agent.connection_group import (
    FIRST_DELAY,
    FIRST_LOOKS,
    LONGEST_DELAY,
    LONGEST_LOOK,
    URGENT_DELAY,
    URGENT_LOOKS,
)
from yurttunnel.wire.codes import Code


class SameServerTests(ClientTestCase):
    """Two clients of one agent that have dialed one server process at the same moment."""

    def setUp(self):
        """Have the server take the second client's session beside the first one's."""
        super().setUp()
        self.sibling = self.make_client(self.issuer.node())
        self.client.start()
        self.sibling.start()
        self.network.settle()
        self.network.pass_time(2)

    def test_stands_by(self):
        """One of them has the session, the other stands by, and streams live."""
        near, _ = self.stream()
        self.network.pass_time(5 * LONGEST_LOOK, 5)
        self.assertEqual((True, False), (self.client.standing_by, self.sibling.standing_by))
        self.assertTrue(self.sibling.connected)
        self.assertEqual(["made"], near.told)
        self.assertEqual(1, len(self.listener.sessions()))

    def test_log(self):
        """It says so once, and warns of no other agent."""
        self.network.pass_time(5 * LONGEST_LOOK, 5)
        self.assertEqual([], self.warnings())
        self.assertEqual(1, sum("stands by" in text for text in self.logged("info")))

    def test_sibling_disconnected(self):
        """While the sibling may still resume its session, that one is left alone."""
        near, _ = self.stream()
        self.network.cut()
        self.network.settle()
        self.network.pass_time(1)
        self.assertTrue(self.client.standing_by and self.sibling.connected)
        self.assertEqual(["made"], near.told)

    def test_sibling_lost_its_session(self):
        """When the sibling's session is over the client is back at once, without a warning."""
        self.patch(random, "uniform", lambda low, high: high)
        self.sibling.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.delay(), FIRST_DELAY)
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertFalse(self.client.standing_by)
        self.assertEqual([], self.warnings())

    def test_sibling_is_left(self):
        """So it is when the sibling's server goes away."""
        self.stream()
        leaving = self.listener
        self.start_server()
        leaving.drain("the server is about to stop")
        self.network.settle()
        self.assertFalse(self.client.standing_by)
        self.network.pass_time(5)
        self.assertEqual(1, len(self.listener.sessions()))
        leaving.close_sessions(Code.GOING_AWAY, "over")

    def test_waiting_sibling(self):
        """A client that waits after failures is woken by the end of its sibling's session."""
        self.network.refuse()
        self.client.look_soon()
        for _ in range(6):
            self.attempt()
        self.assertFalse(self.client.standing_by)
        self.client._callID.reset(LONGEST_DELAY)
        self.network.problem = None
        self.sibling.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.delay(), FIRST_DELAY)

    def test_restarted_server(self):
        """After a restart of the server there is one session again, whichever client's it is."""
        self.network.cut()
        self.start_server()
        self.network.pass_time(3 * LONGEST_DELAY, 1)
        clients = (self.client, self.sibling)
        self.assertEqual([False, True], sorted(client.connected for client in clients))
        self.assertEqual([False, True], sorted(client.standing_by for client in clients))
        attempts = self.network.attempts
        self.network.pass_time(3 * LONGEST_DELAY, 1)
        self.assertLessEqual(self.network.attempts, attempts + 2)

    def test_drain(self):
        """A client that stands by ends at once, and the end of its sibling does not wake it."""
        attempts = self.network.attempts
        for client in self.clients:
            client.drain("the agent is about to stop")
        self.network.pass_time(5)
        self.assertEqual(attempts, self.network.attempts)
        self.assertEqual([], self.clock.getDelayedCalls())


class HeldTests(ClientTestCase):
    """An address that leads to a server with which another client has a session."""

    def setUp(self):
        """Have the server refuse the second client."""
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
        """Let the next look of the second client take place."""
        self.clock.advance(self.wait() + 1e-6)
        self.network.settle()

    def wait(self):
        """Return the seconds until the second client looks again."""
        return self.other._callID.getTime() - self.clock.seconds()

    def test_session_lives(self):
        """The session that there is, and its streams, notice nothing."""
        self.assertEqual((True, False), (self.client.connected, self.other.connected))
        self.near.transport.write(b"still here")
        self.network.settle()
        self.assertEqual((["made"], b"still here"), (self.near.told, bytes(self.far.received)))
        self.assertEqual(1, len(self.listener.sessions()))

    def test_no_failure(self):
        """The refusal is no failure: it is neither counted nor warned of, and told once."""
        for _ in range(3):
            self.look()
        self.assertTrue(self.other.standing_by)
        self.assertEqual((0, []), (self.other.failed_attempts, self.warnings()))
        self.assertEqual(1, sum("stands by" in text for text in self.logged("info")))

    def test_held(self):
        """Its HELLO names the server process of the other client's session, and none else."""
        [hello] = self.hellos
        self.assertEqual(self.listener.process.hex(), hello.properties["held"])
        self.network.cut()
        self.attempt()
        self.assertNotIn("held", self.hellos[-1].properties)

    def test_seldom(self):
        """As long as nothing is missing it looks every few minutes."""
        for _ in range(20):
            self.assertTrue(LONGEST_LOOK / 2 <= self.wait() <= LONGEST_LOOK, self.wait())
            self.look()

    def test_wanting(self):
        """While servers are missing it looks soon at first, and then more and more seldom."""
        self.group.wanting = True
        self.patch(random, "uniform", lambda low, high: high)
        self.other.look_soon()
        delays = []
        for _ in range(24):
            self.look()
            delays.append(self.wait())
        longest = [URGENT_DELAY] * FIRST_LOOKS
        longest += [LONGEST_DELAY] * (URGENT_LOOKS - FIRST_LOOKS)
        longest += [LONGEST_LOOK] * 4
        expected = [min(FIRST_DELAY * 2**n, each) for n, each in enumerate(longest)]
        for delay, bound in zip(delays, expected, strict=True):
            self.assertAlmostEqual(bound, delay, places=3)

    def test_lost(self):
        """When the other client's session is over this one connects at once."""
        self.client.close(Code.GOING_AWAY, "the address is gone")
        self.assertLessEqual(self.wait(), FIRST_DELAY)
        self.look()
        self.assertTrue(self.other.connected)
        self.assertFalse(self.other.standing_by)

    def test_kept_for_resumption(self):
        """While the other client's session may be resumed it is not replaced."""
        self.network.cut()
        self.other.look_soon()
        self.look()
        self.assertFalse(self.other.connected)
        self.attempt()
        self.assertTrue(self.client.connected)
        self.assertEqual(["made"], self.near.told)

    def test_draining(self):
        """A client that drains holds nothing: the other one takes over before it has ended."""
        self.client.drain("the address has changed")
        self.network.settle()
        self.other.look_soon()
        self.look()
        self.assertTrue(self.other.connected)
        self.assertNotIn("held", self.hellos[-1].properties)
        self.near.transport.write(b"still here")
        self.network.pass_time(3)
        self.assertEqual((["made"], b"still here"), (self.near.told, bytes(self.far.received)))
        self.assertIs(
            self.registry.find("edge-1").tunnel.wire.peer.process, self.hellos[-1].process
        )

    def test_real_failure(self):
        """A look that finds nobody is a failure like any other."""
        self.network.refuse()
        self.look()
        self.assertEqual((1, False), (self.other.failed_attempts, self.other.standing_by))
        self.assertIn("refused", self.other.problem)
