"""Lost and stopping siblings, over TLS in memory."""

from __future__ import annotations

from tests.server.siblings.world import TwoServersTests
from yurttunnel.server.service import ServerService
from yurttunnel.server.siblings.client import SiblingClient
from yurttunnel.server.siblings.hello import SIBLING_LIMITS
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.wire.codes import Code

WINDOW = SIBLING_LIMITS.resume_window / 1000


class LossTests(TwoServersTests):
    """Siblings that are lost, temporarily or permanently."""

    def test_short_loss(self):
        """Streams survive a lost connection between servers, and nodes come back."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        for link in self.network.open_links:
            if link is not agent.link:
                link.cut()
        self.assertFalse(self.first.serves("edge-1"))
        near.transport.write(b"goes on")
        self.network.pass_time(1)
        self.assertEqual((b"goes on", ["made"]), (bytes(far.received), far.events))
        self.assertTrue(self.first.serves("edge-1"))
        near.transport.abortConnection()
        self.network.settle()

    def test_session_that_ends_while_it_is_resumed(self):
        """A session that ends while the sibling agrees to resume it is replaced by a new one."""
        self.joined()
        ready = SiblingClient.connection_ready

        def ends_meanwhile(client, connection):
            ready(client, connection)
            if client._current is not None:
                client._current.tunnel.close(Code.SESSION_LOST, "meanwhile")

        self.patch(SiblingClient, "connection_ready", ends_meanwhile)
        for link in self.network.open_links:
            link.cut()
        self.network.pass_time(1.5)
        self.assertEqual((1, 1), self.first.stats)
        ends = self.first.siblings.stats().outgoing.session_ends
        self.assertEqual({Code.SESSION_LOST: 1}, dict(ends))

    def test_killed(self):
        """The nodes of a sibling that dies are removed at once, and its streams soon."""
        agent = self.joined()
        near, _ = self.stream(self.first, agent)
        waiting = self.dial(self.first, agent)
        self.second.kill()
        self.assertFalse(self.first.serves("edge-1"))
        error = self.failureResultOf(waiting, StreamFailed).value
        self.assertEqual(Code.SESSION_LOST, error.code)
        self.assertIn("server-2", error.text)
        # Whatever its machine reports: a device in between may have restarted.
        self.network.pass_time(WINDOW - 0.1)
        self.assertEqual([], near.reasons)
        self.network.pass_time(0.2)
        self.assertEqual(Code.SESSION_LOST, near.reasons[0].value.code)

    def test_killed_with_another_route(self):
        """A dial that waits for a dead sibling takes another route."""
        agent, doomed = self.two_siblings_with_a_node()
        opened = self.dial(self.first, doomed)
        self.assertEqual(1, len(doomed.acceptor.requests))
        self.second.kill()
        self.network.settle()
        self.opens(opened, agent)

    def test_silent(self):
        """A silent sibling has no nodes, and delays no dial, after two seconds."""
        agent = self.joined()
        waiting = self.dial(self.first, agent)
        self.network.dark.add(self.second.host)
        for link in self.network.open_links:
            if link is not agent.link:
                link.lost = True
        self.network.pass_time(2)
        self.assertFalse(self.first.serves("edge-1"))
        self.assertEqual(Code.SESSION_LOST, self.failureResultOf(waiting, StreamFailed).value.code)
        for link in self.network.open_links:
            if link.lost:
                link.cut()

    def test_silent_for_good(self):
        """Streams through a hanging sibling end within seven seconds, so that callers retry."""
        agent = self.joined()
        near, _ = self.stream(self.first, agent)
        self.second.stop_listening()
        for link in self.network.open_links:
            if link is not agent.link:
                link.lost = True
        self.network.pass_time(7)
        self.assertEqual(Code.SESSION_LOST, near.reasons[0].value.code)
        self.assertIsNone(self.first.registry.find_or_none("edge-1"))
        for link in self.network.open_links:
            if link.lost:
                link.cut()

    def test_lost_for_now(self):
        """While a sibling may come back its nodes remain its own: the error names the server.

        Idle connections on the way to them are closed.
        """
        agent = self.joined()
        other = self.agent(self.first, "edge-2", identifiers="host=edge-2&default-route=true")
        route = self.first.registry.find_or_none("edge-1")
        idle = []
        self.first.listener.on_sessions_draining.append(idle.append)
        self.second.stop_listening()
        for link in self.network.open_links:
            if link not in (agent.link, other.link):
                link.cut()
        self.assertEqual([frozenset({route})], idle)
        self.assertIs(route, self.first.registry.find_or_none("edge-1"))
        self.assertFalse(route.connected)
        error = self.failureResultOf(self.dial(self.first, agent), StreamFailed).value
        self.assertEqual(Code.SESSION_LOST, error.code)
        self.assertIn("the server server-2 at 10.0.0.2:10262", error.text)
        self.assertIn("cannot be reached", error.text)

    def test_back_after_silence(self):
        """Streams continue when a sibling is back within the resume window."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        self.second.stop_listening()
        silent = [link for link in self.network.open_links if link is not agent.link]
        for link in silent:
            link.lost = True
        near.transport.write(b"goes on")
        self.network.pass_time(3)
        self.assertEqual(["made"], near.events)
        for link in silent:
            link.cut()
        self.second.listen()
        self.network.pass_time(4)
        self.assertEqual(b"goes on", bytes(far.received))
        self.assertTrue(self.first.serves("edge-1"))
        near.transport.abortConnection()
        self.network.settle()


class DrainTests(TwoServersTests):
    """Replicas that stop gracefully."""

    def test_drain_with_a_stream(self):
        """A stream through a draining sibling continues to its end, for which the sibling waits."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        draining = []
        self.first.listener.on_sessions_draining.append(draining.extend)
        drained = self.second.drain()
        self.network.pass_time(1)
        self.assertTrue(self.first.registry.find_or_none("edge-1").draining)
        self.assertEqual([self.first.registry.find_or_none("edge-1")], draining)
        # The agent has no other session.
        late, _ = self.stream(self.first, agent)
        late.transport.abortConnection()
        near.transport.write(b"question")
        near.transport.loseWriteConnection()
        self.network.pass_time(5)
        self.assertFalse(all(each.called for each in drained))
        far.transport.write(b"answer")
        far.transport.loseConnection()
        self.network.pass_time(1)
        self.assertEqual((b"question", b"answer"), (bytes(far.received), bytes(near.received)))
        self.assertTrue(all(each.called for each in drained))
        self.assertFalse(self.first.serves("edge-1"))

    def test_stopping_with_a_stream(self):
        """A stopping server gives a stream through a sibling its drain timeout, like any other."""
        self.check_stopping(self.first)

    def test_stopping_with_a_stream_of_a_sibling(self):
        """The server also waits for a stream that a sibling has opened through it."""
        self.check_stopping(self.second)

    def check_stopping(self, stopping):
        """Check that a server waits for a stream from the first to the second one's node."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        holders = [stopping.listener, stopping.siblings]
        service = ServerService(self.clock, [], holders, [], drain_timeout=20.0)
        service.startService()
        stopped = service.stopService()
        self.network.pass_time(15, step=0.2)
        self.assertNoResult(stopped)
        far.transport.write(b"the end")
        self.network.settle()
        self.assertEqual(b"the end", bytes(near.received))
        near.transport.abortConnection()
        self.network.pass_time(1)
        self.successResultOf(stopped)

    def test_connection_that_is_lost_in_a_drain(self):
        """Streams of a draining sibling end at once on both sides when the connection is lost."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        drained = self.second.drain()
        self.network.pass_time(1)
        for link in self.network.open_links:
            if link is not agent.link:
                link.cut()
        self.assertTrue(all(each.called for each in drained))
        self.network.settle()
        self.assertEqual(Code.SESSION_LOST, near.reasons[0].value.code)
        self.assertEqual(Code.GOING_AWAY, far.reasons[0].value.code)

    def test_others_are_preferred(self):
        """A node of a draining and another sibling is reached through the other."""
        agent, old = self.two_siblings_with_a_node()
        old_user, _ = self.stream(self.first, old)
        self.second.drain()
        self.network.pass_time(0.5)
        near, far = self.stream(self.first, agent)
        near.transport.write(b"x")
        self.network.settle()
        self.assertEqual(b"x", bytes(far.received))
        for user in (old_user, near):
            user.transport.abortConnection()
        self.network.pass_time(1)

    def test_own_drain(self):
        """A draining replica lets its streams through others end, and does not reconnect."""
        agent = self.joined()
        near, far = self.stream(self.first, agent)
        drained = self.first.drain()
        self.network.pass_time(5)
        far.transport.write(b"answer")
        self.network.settle()
        self.assertEqual(b"answer", bytes(near.received))
        near.transport.loseConnection()
        far.transport.loseConnection()
        attempts = len(self.network.attempts)
        self.network.pass_time(5)
        self.assertTrue(all(each.called for each in drained))
        dialed = self.network.attempts[attempts:]
        self.assertNotIn(self.second.host, dialed)

    def test_drained_without_streams(self):
        """Without streams sessions between servers end at once."""
        self.joined()
        drained = self.second.drain()
        self.network.pass_time(1)
        self.assertTrue(all(each.called for each in drained))
        self.assertEqual([], self.second.siblings._acceptor.sessions())

    def test_new_siblings_are_refused(self):
        """A draining replica rejects siblings."""
        self.second.drain()
        third = self.server(3)
        self.network.pass_time(3)
        self.assertIn("about to stop", third.siblings.problem())
        self.assertEqual([], self.second.siblings._acceptor.sessions())

    def test_closed(self):
        """Streams that have not ended by the end of a drain end with its reason."""
        agent = self.joined()
        near, _ = self.stream(self.first, agent)
        self.second.drain()
        self.network.pass_time(1)
        abandoned = []
        self.patch(SessionConnection, "abandon", abandoned.append)
        self.second.listener.close_sessions(Code.GOING_AWAY, "the server has stopped")
        self.assertEqual([], abandoned, "what ends with a reason is not aborted")
        self.network.settle()
        self.assertEqual(Code.GOING_AWAY, near.reasons[0].value.code)
        self.second.siblings.stopService()
        self.second.stop_listening()

    def test_stopped(self):
        """A service that is stopped alone leaves nothing open."""
        self.joined()
        self.second.siblings.stopService()
        self.assertEqual([], self.second.siblings.sessions())
        self.network.settle()
