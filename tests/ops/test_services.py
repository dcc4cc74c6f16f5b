"""Services of which programs are composed."""

from __future__ import annotations

from types import SimpleNamespace

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import TestCase

from yurttunnel.ops.listen import CannotListen
from yurttunnel.ops.services import CloseOnStop, PortService, StoppedInReverse


class StopOrderTests(TestCase):
    """Services that are stopped one after the other."""

    def test_order(self):
        """The last service stops first; the others run until it has stopped."""
        first, last, ended = Service(), Service(), Deferred()
        last.stopService = lambda: ended
        parts = StoppedInReverse(first, None, last)
        parts.startService()
        stopped = parts.stopService()
        self.assertEqual((True, False), (bool(first.running), bool(parts.running)))
        self.assertNoResult(stopped)
        ended.callback(None)
        self.successResultOf(stopped)
        self.assertFalse(first.running)

    def test_a_part_that_fails(self):
        """When one service fails to stop, the others are stopped, and the stop fails."""
        for failing in (lambda: fail(ZeroDivisionError()), lambda: 1 / 0):
            first, last = Service(), Service()
            last.stopService = failing
            parts = StoppedInReverse(first, last)
            parts.startService()
            self.failureResultOf(parts.stopService(), ZeroDivisionError)
            self.assertFalse(first.running)

    def test_parts_that_fail(self):
        """The failure of the first service to stop is returned, and the others are logged."""
        parts = StoppedInReverse()
        for error in (ValueError("the last one"), ZeroDivisionError("the first one")):
            part = Service()
            part.stopService = lambda error=error: fail(error)
            part.setServiceParent(parts)
        parts.startService()
        self.failureResultOf(parts.stopService(), ZeroDivisionError)
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))


class PortServiceTests(TestCase):
    """A port as a service."""

    def test_life(self):
        """A service listens from start to stop, and its stop waits for the port to close."""
        closed = Deferred()
        port = SimpleNamespace(stopListening=lambda: closed)
        listened = []
        service = PortService(lambda: listened.append(port) or port)
        self.assertEqual([], listened)
        service.startService()
        self.assertTrue(service.running)
        self.assertIs(closed, service.stopService())
        self.assertFalse(service.running)
        self.assertIsNone(service.stopService())

    def test_end(self):
        """Stopping closes the port first, then calls the given function."""
        events = []
        port = SimpleNamespace(stopListening=lambda: events.append("closed"))
        service = PortService(lambda: port, lambda: events.append("ended"))
        service.startService()
        self.assertEqual([], events)
        service.stopService()
        self.assertEqual(["closed", "ended"], events)

    def test_port_in_use(self):
        """A port that is in use ends the start with an error message."""

        def listen():
            raise CannotListen("--meta-port", "another process listens there")

        service = PortService(listen)
        error = self.assertRaises(SystemExit, service.startService)
        self.assertIn("--meta-port", str(error))
        self.assertFalse(service.running)


class ClosedAtTheEndTests(TestCase):
    """A resource that only needs closing."""

    def test_end(self):
        """A resource is closed when the service stops, and the stop waits for that."""
        closed = Deferred()
        service = CloseOnStop(lambda: closed)
        service.startService()
        self.assertIs(closed, service.stopService())
        self.assertFalse(service.running)
