"""DNS lookups in threads: they are shared, limited, and do not delay the process's end."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

from twisted.internet import reactor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHostnameResolver, IResolutionReceiver
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from yurttunnel.ops import threaded_resolver
from yurttunnel.ops.threaded_resolver import ThreadedResolver

ENDING = """
import socket, time
from twisted.internet import reactor
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.protocol import Factory
from yurttunnel.ops.threaded_resolver import ThreadedResolver

socket.getaddrinfo = lambda *question: time.sleep(30)
reactor.installNameResolver(ThreadedResolver(reactor))
HostnameEndpoint(reactor, "silent.test", 1).connect(Factory()).addErrback(lambda failure: None)
reactor.callLater(0.1, reactor.stop)
reactor.run()
"""


@implementer(IResolutionReceiver)
class Receiver:
    """A receiver that collects addresses."""

    def __init__(self) -> None:
        self.name = ""
        self.addresses: list[object] = []
        self.resolution = None
        self.complete: Deferred[list[object]] = Deferred()

    def resolutionBegan(self, resolution) -> None:
        """Record the name."""
        self.name = resolution.name

    def addressResolved(self, address) -> None:
        """Collect the address."""
        self.addresses.append(address)

    def resolutionComplete(self) -> None:
        """Fire with all addresses."""
        self.complete.callback(self.addresses)


class LookupTests(TestCase):
    """Lookups with a fake resolver that answers when the test permits."""

    def setUp(self) -> None:
        """Replace the system's resolver."""
        self.queries: list[tuple[object, ...]] = []
        self.may_answer = threading.Event()
        self.answer: object = []
        self.patch(socket, "getaddrinfo", self.getaddrinfo)
        self.lookups = ThreadedResolver(reactor)
        self.addCleanup(self.may_answer.set)

    def getaddrinfo(self, *question):
        """Wait for the test's permission, then answer."""
        self.queries.append(question)
        self.may_answer.wait(30)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def look_up(self, name="api.test", port=6443, **more) -> Receiver:
        """Start a lookup."""
        receiver = Receiver()
        receiver.resolution = self.lookups.resolveHostName(receiver, name, port, **more)
        self.assertEqual(name, receiver.name)
        return receiver

    async def test_addresses(self) -> None:
        """Addresses of both families keep the system's order; equal lookups are shared."""
        self.assertTrue(verifyObject(IHostnameResolver, self.lookups))
        self.answer = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 6443, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 6443)),
        ]
        receivers = [self.look_up(), self.look_up()]
        other = self.look_up(addressTypes=[IPv4Address], transportSemantics="UDP")
        self.may_answer.set()
        for receiver in receivers:
            self.assertEqual(
                [
                    IPv6Address("TCP", "2001:db8::1", 6443, 0, 0),
                    IPv4Address("TCP", "192.0.2.1", 6443),
                ],
                await receiver.complete,
            )
        await other.complete
        self.assertEqual(
            {
                (b"api.test", 6443, socket.AF_UNSPEC, socket.SOCK_STREAM),
                (b"api.test", 6443, socket.AF_INET, socket.SOCK_DGRAM),
            },
            set(self.queries),
        )
        self.assertEqual(2, len(self.queries))

    async def test_cancelled(self) -> None:
        """A cancelled lookup does not fire, but the others that share it do."""
        cancelled, waiting = self.look_up(), self.look_up()
        cancelled.resolution.cancel()
        self.look_up()
        self.may_answer.set()
        await waiting.complete
        self.assertFalse(cancelled.complete.called)

    async def test_failures(self) -> None:
        """A failed lookup returns no addresses."""
        self.may_answer.set()
        for error in (socket.gaierror(socket.EAI_AGAIN, "again"), UnicodeError("no name")):
            self.answer = error
            self.assertEqual([], await self.look_up().complete)

    async def test_too_many(self) -> None:
        """A lookup over the limit returns no addresses at once and is logged."""
        self.patch(threaded_resolver, "MAX_LOOKUPS", 2)
        others = [self.look_up("a.test"), self.look_up("b.test")]
        with capturedLogs() as events:
            self.assertEqual([], self.successResultOf(self.look_up().complete))
        self.assertIn("api.test is not resolved", formatEvent(events[0]))
        self.may_answer.set()
        for other in others:
            await other.complete
        await self.look_up().complete
        self.assertIn(b"api.test", {question[0] for question in self.queries})

    def test_no_thread(self) -> None:
        """If no thread can be started, a lookup returns no addresses and the error is logged."""

        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        self.patch(threading.Thread, "start", refuse)
        self.assertEqual([], self.successResultOf(self.look_up().complete))
        self.assertEqual(1, len(self.flushLoggedErrors(RuntimeError)))

    def test_the_end_of_the_process(self) -> None:
        """The end of the process does not wait for a silent name server."""
        subprocess.run([sys.executable, "-c", ENDING], check=True, timeout=25)
