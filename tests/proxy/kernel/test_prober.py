"""What a probe makes of an endpoint, and of this machine."""

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
from yurttunnel.proxy.kernel.prober import SECONDS, Outcome, Prober

ONE = endpoint(1)


class TurningReactor(MemoryReactorClock):
    """One that keeps what is to be done in its next turn until :meth:`turn`."""

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
        """Do it."""
        due, self.next = self.next, []
        for each in due:
            if each.active():
                each.reset(0)
        self.advance(0)


class Connection(StringTransport):
    """One that is told to abort."""

    def abortConnection(self):
        """End it at once."""
        super().abortConnection()
        self.protocol.connectionLost(Failure(ConnectionAbortedError()))


class ProbeTests(SynchronousTestCase):
    """One probe, whose connection is made by hand."""

    def setUp(self):
        """Begin it."""
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
        """Have it come to nothing."""
        self.factory.clientConnectionFailed(None, Failure(error))

    def test_silence(self):
        """It is told at the end of the time, and nothing is left."""
        self.reactor.advance(SECONDS)
        self.assertNoResult(self.probing)
        self.reactor.turn()
        self.assertIs(Outcome.SILENT, self.successResultOf(self.probing))
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_a_process_that_is_late(self):
        """What came in time, and is read after it, is an answer."""
        self.assertEqual(1.0, self.timeout)
        self.reactor.advance(2 * SECONDS)
        self.connect()
        self.reactor.turn()
        self.assertIs(Outcome.ANSWERED, self.successResultOf(self.probing))
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_no_way(self):
        """A router that says so refuses, too."""
        self.fail(NoRouteError(errno.EHOSTUNREACH, "no route"))
        self.assertIs(Outcome.REFUSED, self.successResultOf(self.probing))
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_no_descriptors(self):
        """No endpoint is to blame for that."""
        self.fail(ConnectBindError(errno.EMFILE, "too many open files"))
        self.assertIs(Outcome.UNKNOWN, self.successResultOf(self.probing))

    def test_no_local_ports(self):
        """Nor for that, though the kernel says so only when it connects."""
        self.fail(getConnectError((errno.EADDRNOTAVAIL, "cannot assign requested address")))
        self.assertIs(Outcome.UNKNOWN, self.successResultOf(self.probing))


class RealEndpointTests(KernelTestCase):
    """What endpoints do, with real packets."""

    async def test_outcomes(self):
        """One answers, one refuses, one is silent; who does not wait for that hears nothing."""
        prober = Prober(reactor)
        self.serve(0)
        self.lab.drop(2)
        for version in (4, 6):
            outcomes = [await prober.probe(self.lab.address(n, version)) for n in range(3)]
            self.assertEqual([Outcome.ANSWERED, Outcome.REFUSED, Outcome.SILENT], outcomes)
        probing = prober.probe(self.lab.address(2))
        prober.stop()
        self.failureResultOf(probing, CancelledError)
