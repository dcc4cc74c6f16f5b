"""The server as a service: binding, and the order of its shutdown."""

from __future__ import annotations

from twisted.internet.defer import Deferred, DeferredList

from tests.logged import Logged
from tests.server.agents import ListenerTests
from yurttunnel.ops.listen import CannotListen
from yurttunnel.server.service import PORT_CLOSE_TIMEOUT, Listener, ServerService
from yurttunnel.wire.codes import Code

DRAIN_TIMEOUT = 10.0


class Port:
    """A port that records its close, which ``closed`` completes."""

    def __init__(self, happened, name):
        self.happened = happened
        self.name = name
        self.closed = Deferred()

    def stopListening(self):
        """Start to close."""
        self.happened.append(f"{self.name} closes")
        return self.closed


class Caller:
    """A factory for callers that records its shutdown."""

    def __init__(self, happened):
        self.happened = happened

        self.drained = []

    def drain(self):
        """Record it; with ``drained`` the test makes the service wait."""
        self.happened.append("callers drain")
        return DeferredList(self.drained)

    def close(self):
        """Record it."""
        self.happened.append("callers end")


class Session:
    """A session that ends when the test says so."""

    def __init__(self):
        self.end = Deferred()

    def ended(self):
        """Return a ``Deferred`` that fires at the end."""
        return self.end


class Holder:
    """Holds sessions, and records calls."""

    def __init__(self):
        self.open_sessions = []
        self.calls = []

    def sessions(self):
        """Return those set by the test."""
        return self.open_sessions

    def drain(self, text):
        """Record it."""
        self.calls.append(text)

    def close_sessions(self, code, text):
        """Record it."""
        self.calls.append((code, text))


class ServiceTests(ListenerTests):
    """A service with two ports and the agents' listener."""

    def setUp(self):
        """Create the service."""
        super().setUp()
        self.happened = []
        self.ports = []
        self.in_use = False
        self.caller = Caller(self.happened)
        self.siblings = Holder()
        self.service = ServerService(
            self.clock,
            [
                Listener("--agent-port", self.listen("agents")),
                Listener("--forward", self.forward),
            ],
            [self.listener, self.siblings],
            [self.caller],
            DRAIN_TIMEOUT,
        )

    def listen(self, name):
        """Return a function that binds a port."""

        def bind():
            self.ports.append(Port(self.happened, name))
            return self.ports[-1]

        return bind

    def forward(self):
        """Bind the second port, unless it is in use."""
        if self.in_use:
            raise CannotListen("--forward", "another process listens there")
        return self.listen("forward")()

    def close_ports(self):
        """Let the ports close."""
        for port in self.ports:
            port.closed.callback(None)

    def stop(self):
        """Start to stop; return the ``Deferred`` of the end."""
        return self.service.stopService()

    def test_all(self):
        """All listeners are bound when the service has started, and not before."""
        self.assertEqual("not listening: --agent-port, --forward", self.service.not_accepting())
        self.service.startService()
        self.assertIsNone(self.service.not_accepting())
        self.assertTrue(self.service.running)

    def test_none(self):
        """If one cannot be bound the others are closed, and the message is passed on."""
        self.in_use = True
        error = self.assertRaises(SystemExit, self.service.startService)
        self.assertEqual("--forward: another process listens there", str(error))
        self.assertEqual(["agents closes"], self.happened)
        self.assertEqual("not listening: --agent-port, --forward", self.service.not_accepting())
        self.assertFalse(self.service.running)

    def test_defect_while_binding(self):
        """An unexpected exception closes the listeners that are bound, too."""
        self.service._listeners.append(Listener("--x", lambda: {}["missing"]))
        self.assertRaises(KeyError, self.service.startService)
        self.assertEqual(["agents closes", "forward closes"], self.happened)

    def test_stop_idle(self):
        """Without sessions stopping takes no longer than closing the ports."""
        self.service.startService()
        stopped = self.stop()
        self.assertNoResult(stopped)
        self.close_ports()
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertFalse(self.service.running)

    def test_port_that_does_not_close(self):
        """A port that does not close delays the shutdown by at most PORT_CLOSE_TIMEOUT."""
        self.service.startService()
        stopped = self.stop()
        self.clock.advance(PORT_CLOSE_TIMEOUT + 0.1)
        self.successResultOf(stopped)

    def test_order(self):
        """Ports close, streams may complete, and callers are aborted."""
        self.service.startService()
        user = self.stream(self.connected())
        stopped = self.stop()
        self.close_ports()
        self.assertEqual(["agents closes", "forward closes", "callers drain"], self.happened)
        self.network.pass_time(DRAIN_TIMEOUT / 2)
        self.assertNoResult(stopped)
        self.assertEqual(["made"], user.events)
        user.transport.abortConnection()
        self.network.pass_time(1)
        self.successResultOf(stopped)
        self.assertEqual("callers end", self.happened[-1])

    def test_every_holder_of_sessions(self):
        """The sessions of each holder are waited for like agents', up to the drain timeout."""
        for ends in (True, False):
            self.service.startService()
            session = Session()
            self.siblings.open_sessions = [session]
            self.siblings.calls.clear()
            stopped = self.stop()
            self.close_ports()
            self.assertEqual(["the server is about to stop"], self.siblings.calls)
            self.network.pass_time(DRAIN_TIMEOUT - 0.5)
            self.assertNoResult(stopped)
            if ends:
                session.end.callback(None)
            self.network.pass_time(1)
            self.successResultOf(stopped)
            end = (Code.GOING_AWAY, "the server has stopped")
            self.assertEqual(["the server is about to stop", end], self.siblings.calls)
            self.ports.clear()

    def test_callers_that_drain(self):
        """After the last stream callers have time to read their responses."""
        self.service.startService()
        user = self.stream(self.connected())
        read = Deferred()
        self.caller.drained = [read]
        stopped = self.stop()
        self.close_ports()
        self.network.pass_time(DRAIN_TIMEOUT / 2)
        user.transport.abortConnection()
        self.network.pass_time(DRAIN_TIMEOUT / 2 - 1)
        self.assertNoResult(stopped)
        read.callback(None)
        self.network.pass_time(1)
        self.successResultOf(stopped)

    def test_callers_that_do_not_drain(self):
        """Callers have the rest of the drain timeout; a warning reports those that need longer."""
        lines = Logged(self)
        self.service.startService()
        user = self.stream(self.connected())
        self.caller.drained = [Deferred()]
        stopped = self.stop()
        self.close_ports()
        self.network.pass_time(DRAIN_TIMEOUT / 2)
        user.transport.abortConnection()
        self.network.pass_time(DRAIN_TIMEOUT / 2 - 0.5)
        self.assertNoResult(stopped)
        self.network.pass_time(1)
        self.successResultOf(stopped)
        self.assertEqual("callers end", self.happened[-1])
        (line,) = [line for line in lines if "callers had" in line]
        self.assertIn("had not read all of their responses", line)

    def test_not_accepting_while_draining(self):
        """The service reports draining as soon as it stops."""
        self.service.startService()
        self.stream(self.connected())
        stopped = self.stop()
        self.close_ports()
        self.assertIn("draining", self.service.not_accepting())
        self.assertNoResult(stopped)
        self.network.pass_time(DRAIN_TIMEOUT + PORT_CLOSE_TIMEOUT)
        self.successResultOf(stopped)

    def test_revocation_while_draining(self):
        """A node that is revoked during the drain loses its streams at once."""
        self.service.startService()
        user = self.stream(self.connected())
        stopped = self.stop()
        self.close_ports()
        self.revoked.add(b"edge-1".hex())
        self.listener.revoke("edge-1")
        self.assertEqual(Code.REVOKED, user.reasons[0].value.code)
        self.network.pass_time(1)
        self.successResultOf(stopped)

    def test_drain_timeout(self):
        """Streams that do not end are aborted after the drain timeout, with a reason."""
        self.service.startService()
        agent = self.connected()
        user = self.stream(agent)
        stopped = self.stop()
        self.close_ports()
        self.network.pass_time(DRAIN_TIMEOUT - 0.5)
        self.assertEqual(["made"], user.events)
        self.network.pass_time(1)
        self.successResultOf(stopped)
        self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)
        self.assertEqual([(Code.GOING_AWAY, "the server has stopped")], agent.ends)
        self.assertEqual([], self.network.open_links)

    def test_no_drain(self):
        """With a drain timeout of zero streams end at once."""
        self.service.drain_timeout = 0.0
        self.service.startService()
        user = self.stream(self.connected())
        stopped = self.stop()
        self.close_ports()
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual(Code.GOING_AWAY, user.reasons[0].value.code)

    def test_agents_during_drain(self):
        """An agent whose connection was accepted already is rejected during the drain."""
        self.service.startService()
        self.stream(self.connected("edge-1"))
        self.stop()
        self.refused(self.agent("edge-2"), Code.GOING_AWAY, "about to stop")
        self.network.pass_time(DRAIN_TIMEOUT + PORT_CLOSE_TIMEOUT + 1)
