"""Tests of the results of probes."""

from __future__ import annotations

import errno

from twisted.internet import reactor
from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectBindError, NoRouteError, getConnectError
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.kernel.support import KernelTestCase
from tests.proxy.services import endpoint
from yurttunnel.proxy.kernel.prober import TIMEOUT, Outcome, Prober

ONE = endpoint(1)


class TurningReactor(MemoryReactorClock):
    """Delays what is to be done in its next turn until :meth:`turn`."""

    def __init__(self):
        super().__init__()
        self.next = []

    def callLater(self, delay, call, *arguments, **named):
        """Set a timer; see ``IReactorTime``."""
        made = super().callLater(delay or 1e9, call, *arguments, **named)
        if not delay:
            self.next.append(made)
        return made

    def turn(self):
        """Run the calls of this turn."""
        due, self.next = self.next, []
        for each in due:
            if each.active():
                each.reset(0)
        self.advance(0)


class Connection(StringTransport):
    """A connection that can be aborted."""

    def abortConnection(self):
        """End it at once."""
        super().abortConnection()
        self.protocol.connectionLost(Failure(ConnectionAbortedError()))


class ProbeTests(SynchronousTestCase):
    """One probe, whose connection is simulated."""

    def setUp(self):
        """Start the probe."""
        self.reactor = TurningReactor()
        self.probing = Prober(self.reactor).probe(ONE)
        ((_, _, self.factory, self.timeout, _),) = self.reactor.tcpClients

    def connect(self):
        """Have the endpoint answer."""
        made = self.factory.buildProtocol(None)
        transport = Connection()
        transport.protocol = made
        made.makeConnection(transport)

    def fail(self, error):
        """Have the connection fail."""
        self.factory.clientConnectionFailed(None, Failure(error))

    def test_silence(self):
        """Silence is reported at the end of the time, and nothing remains."""
        self.reactor.advance(TIMEOUT)
        self.assertNoResult(self.probing)
        self.reactor.turn()
        self.assertIs(Outcome.SILENT, self.successResultOf(self.probing))
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_a_process_that_is_late(self):
        """An answer that arrived in time but is read later counts as an answer."""
        self.assertEqual(1.0, self.timeout)
        self.reactor.advance(2 * TIMEOUT)
        self.connect()
        self.reactor.turn()
        self.assertIs(Outcome.ANSWERED, self.successResultOf(self.probing))
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_no_route(self):
        """An error of a router counts as a refusal."""
        self.fail(NoRouteError(errno.EHOSTUNREACH, "no route"))
        self.assertIs(Outcome.REFUSED, self.successResultOf(self.probing))
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_no_descriptors(self):
        """Missing descriptors are no failure of the endpoint."""
        self.fail(ConnectBindError(errno.EMFILE, "too many open files"))
        self.assertIs(Outcome.UNKNOWN, self.successResultOf(self.probing))

    def test_no_local_ports(self):
        """Missing local ports are no failure either, though only connect reports them."""
        self.fail(getConnectError((errno.EADDRNOTAVAIL, "cannot assign requested address")))
        self.assertIs(Outcome.UNKNOWN, self.successResultOf(self.probing))


class RealEndpointTests(KernelTestCase):
    """The results of endpoints, with real packets."""

    async def test_outcomes(self):
        """One answers, one refuses, one is silent; a cancelled probe has no result."""
        prober = Prober(reactor)
        self.serve(0)
        self.lab.drop(2)
        for version in (4, 6):
            outcomes = [await prober.probe(self.lab.address(n, version)) for n in range(3)]
            self.assertEqual([Outcome.ANSWERED, Outcome.REFUSED, Outcome.SILENT], outcomes)
        probing = prober.probe(self.lab.address(2))
        prober.stop()
        self.failureResultOf(probing, CancelledError)
