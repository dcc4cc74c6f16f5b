"""Forwards that are opened and closed while a server runs, on real ports of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from benchmarks.ports import free_ports
from tests.fakes import FakeSession
from yurttunnel.ops.listen import CannotListen, listen_tcp
from yurttunnel.server.frontends.forward import ForwardFactory, parse_forward
from yurttunnel.server.frontends.forwards import ForwardRefused, Forwards, Origin
from yurttunnel.server.registry import SessionRegistry

DEADLINE = 10.0


def sockets_at(port):
    """Return the names of this process's sockets that are bound to a port."""
    found = []
    # Other descriptors may change because of threads of earlier tests.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as one:
                    found.append(one.getsockname())
    return [name for name in found if isinstance(name, tuple) and name[1:2] == (port,)]


class ForwardsTests(TestCase):
    """``Forwards`` has the ports open that the most recent change defines."""

    timeout = 30

    def setUp(self):
        """Connect edge-1, and find free ports."""
        self.session = FakeSession("edge-1")
        registry = SessionRegistry(reactor)
        registry.add(self.session)
        self.registry = registry
        self.first, self.second, self.third = (free_ports.take() for _ in range(3))
        self.clients = []

    def forwards(self, *texts):
        """Create forwards with a configuration, and listen."""
        forwards = self.prepared(*texts)
        forwards.listen()
        return forwards

    def prepared(self, *texts):
        """Create forwards with a configuration; close everything after the test."""
        forwards = Forwards(
            lambda forward: ForwardFactory(self.registry, forward),
            lambda *where: listen_tcp(reactor, *where),
            list(map(parse_forward, texts)),
        )
        self.addCleanup(self.ended, forwards)
        return forwards

    def ended(self, forwards):
        """Stop like a server, and check that no connection remains."""
        return Deferred.fromCoroutine(self._ended(forwards))

    async def _ended(self, forwards):
        await forwards.stopListening()
        drained = forwards.drain()
        forwards.close()
        await drained
        for client in self.clients:
            client.transport.abortConnection()
            await client.lost

    async def connect(self, port, host="127.0.0.1"):
        """Connect a client, and wait until its target was requested."""
        before = len(self.session.dials)
        endpoint = TCP4ClientEndpoint(reactor, host, port)
        client = await endpoint.connect(Factory.forProtocol(Client))
        self.clients.append(client)
        end = reactor.seconds() + DEADLINE
        while len(self.session.dials) == before and reactor.seconds() < end:
            await deferLater(reactor, 0.001)
        dial = self.session.dials[-1]
        return f"{dial.host}:{dial.port}"

    def listens(self, port, host="127.0.0.1"):
        """Return whether a port is open."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return True
        return False

    def texts(self, forwards):
        """Return the open forwards and their origins."""
        return {state.forward.text: state.origin for state in forwards.states()}

    async def refused(self, change):
        """Return the message of a rejected change."""
        return str(await self.assertFailure(change, ForwardRefused))

    async def test_forwards_of_the_configuration(self):
        """The server starts only if all forwards can be opened; otherwise none stays open."""
        one, two = f"{self.first}=edge-1/a:1", f"{self.second}=edge-1/b:2"
        forwards = self.forwards(one, two)
        self.assertEqual(dict.fromkeys((one, two), Origin.CONFIGURATION), self.texts(forwards))
        others = self.prepared(f"{self.third}=edge-1/c:3", one)
        error = self.assertRaises(CannotListen, others.listen)
        self.assertIn(f"--forward {one}: cannot listen", error.code)
        await deferLater(reactor, 0)
        self.assertFalse(self.listens(self.third))

    async def test_forwards_of_commands(self):
        """Connections reach its target until it is closed; then the port is closed."""
        forwards = self.forwards()
        text = f"{self.first}=edge-1/a:80"
        await forwards.add(parse_forward(text))
        self.assertEqual({text: Origin.COMMAND}, self.texts(forwards))
        self.assertEqual("a:80", await self.connect(self.first))
        removed = await forwards.remove(("127.0.0.1", self.first))
        self.assertEqual(text, removed.text)
        self.assertEqual({}, self.texts(forwards))
        self.assertFalse(self.listens(self.first))

    async def test_connections_outlive_their_forward(self):
        """Connections continue when their forward closes; a stopping server drains them."""
        forwards = self.forwards(f"{self.first}=edge-1/a:80")
        await self.connect(self.first)
        (state,) = forwards.states()
        self.assertEqual(1, state.connections)
        await forwards.remove(("127.0.0.1", self.first))
        drained = forwards.drain()
        self.assertFalse(self.clients[0].lost.called)
        self.assertFalse(drained.called)
        forwards.close()
        await drained
        await self.clients[0].lost

    async def test_an_address_in_use(self):
        """The message has its origin; only a replacement takes it, and the port stays open."""
        old, new = f"{self.first}=edge-1/a:80", f"{self.first}=edge-1/b:81"
        forwards = self.forwards(old)
        self.assertEqual("a:80", await self.connect(self.first))
        reason = await self.refused(forwards.add(parse_forward(new)))
        self.assertEqual(
            f"{old} is open already: yurttunnel forward rm 127.0.0.1:{self.first} closes it,"
            " forward add --replace replaces it",
            reason,
        )
        descriptors = len(os.listdir("/proc/self/fd"))
        await forwards.add(parse_forward(new), replace=True)
        self.assertEqual(descriptors, len(os.listdir("/proc/self/fd")))
        self.assertEqual({new: Origin.COMMAND}, self.texts(forwards))
        self.assertEqual("b:81", await self.connect(self.first))
        self.assertFalse(self.clients[0].lost.called)

    async def test_rejected_changes(self):
        """A port in use, an unknown forward, a server that does not listen."""
        port = free_ports.take()
        with socket.create_server(("127.0.0.1", port)):
            forwards = self.prepared()
            forward = parse_forward(f"{port}=edge-1/a:1")
            self.assertIn("does not listen", await self.refused(forwards.add(forward)))
            forwards.listen()
            self.assertEqual(
                f"cannot listen on 127.0.0.1:{port}: another process listens there, or this one"
                " for another flag: stop it, or choose another port",
                await self.refused(forwards.add(forward)),
            )
        self.assertEqual(
            f"no forward listens on 127.0.0.1:{port}",
            await self.refused(forwards.remove(("127.0.0.1", port))),
        )
        await forwards.stopListening()
        self.assertIn("does not listen", await self.refused(forwards.add(forward)))

    async def test_a_change_of_the_configuration(self):
        """New forwards are opened, changed ones redirected, and removed ones closed."""
        same, old, moved = (
            f"{port}=edge-1/{host}:1"
            for port, host in zip((self.first, self.second, self.third), "abc", strict=True)
        )
        forwards = self.forwards(same, old, moved)
        fourth = free_ports.take()
        new, elsewhere = f"{fourth}=edge-1/d:1", f"{self.third}=edge-1/e:1"
        await forwards.configure([parse_forward(each) for each in (same, new, elsewhere)])
        self.assertEqual({same, new, elsewhere}, set(self.texts(forwards)))
        self.assertFalse(self.listens(self.second))
        self.assertEqual("d:1", await self.connect(fourth))
        self.assertEqual("e:1", await self.connect(self.third))

    async def test_a_rejected_configuration_changes_nothing(self):
        """No forward is opened or closed."""
        old = f"{self.first}=edge-1/a:1"
        forwards = self.forwards(old)
        with socket.create_server(("127.0.0.1", self.second)):
            desired = [f"{self.third}=edge-1/b:1", f"{self.second}=edge-1/c:1"]
            reason = await self.refused(forwards.configure(list(map(parse_forward, desired))))
        self.assertIn(
            f"--forward {self.second}=edge-1/c:1: cannot listen on 127.0.0.1:{self.second}: another"
            " process listens there",
            reason,
        )
        self.assertEqual([old], list(self.texts(forwards)))
        self.assertEqual("a:1", await self.connect(self.first))
        self.assertFalse(self.listens(self.third))
        # The same one, once the port is free.
        await forwards.configure(list(map(parse_forward, desired)))
        self.assertEqual(set(desired), set(self.texts(forwards)))

    async def test_overlapping_addresses(self):
        """A forward on all addresses replaces one on a single address, and vice versa."""
        one, every = f"127.0.0.2:{self.first}=edge-1/a:1", f"0.0.0.0:{self.first}=edge-1/b:1"
        forwards = self.forwards(one)
        for text, target in ((every, "b:1"), (one, "a:1"), (every, "b:1")):
            await forwards.configure([parse_forward(text)])
            self.assertEqual(target, await self.connect(self.first, "127.0.0.2"))
        # The change fails: what was closed for it is opened again.
        with socket.create_server(("127.0.0.1", self.second)):
            unlucky = [one, f"{self.second}=edge-1/c:1"]
            await self.refused(forwards.configure(list(map(parse_forward, unlucky))))
        self.assertEqual([every], list(self.texts(forwards)))
        self.assertEqual("b:1", await self.connect(self.first, "127.0.0.2"))

    async def test_the_latest_change_of_an_address_applies(self):
        """The configuration does not touch a command's change, until its own entry changes."""
        one, two = f"{self.first}=edge-1/a:1", f"{self.second}=edge-1/b:1"
        forwards = self.forwards(one, two)
        # A command closes one, and changes the target of the other.
        await forwards.remove(("127.0.0.1", self.first))
        elsewhere = f"{self.second}=edge-1/x:1"
        await forwards.add(parse_forward(elsewhere), replace=True)
        # A configuration with both unchanged, and one with neither.
        third = f"{self.third}=edge-1/c:1"
        await forwards.configure([parse_forward(each) for each in (one, two, third)])
        self.assertEqual({elsewhere, third}, set(self.texts(forwards)))
        await forwards.configure([])
        self.assertEqual({elsewhere: Origin.COMMAND}, self.texts(forwards))
        # The configuration names that address again, and then owns it.
        await forwards.configure([parse_forward(two)])
        self.assertEqual({two: Origin.CONFIGURATION}, self.texts(forwards))
        await forwards.configure([])
        self.assertEqual({}, self.texts(forwards))

    async def test_changes_are_made_one_after_the_other(self):
        """After a hundred concurrent changes the last one applies, and no descriptor leaks."""
        forwards = self.forwards()
        every, one = (
            parse_forward(f"{host}:{self.first}=edge-1/a:1") for host in ("0.0.0.0", "127.0.0.1")
        )
        changes = [forwards.configure([each]) for each in [every, one] * 50]
        changes.append(forwards.configure([]))
        self.assertTrue(sockets_at(self.first))
        for change in changes:
            await change
        self.assertEqual([], forwards.states())
        self.assertEqual([], sockets_at(self.first))

    async def test_a_stop_amid_a_change(self):
        """A stop during a change leaves no forward open."""
        forwards = self.forwards(f"127.0.0.2:{self.first}=edge-1/a:1")
        change = forwards.configure([parse_forward(f"0.0.0.0:{self.first}=edge-1/b:1")])
        self.assertNoResult(change)
        await forwards.stopListening()
        self.assertIn("does not listen", await self.refused(change))
        self.assertFalse(self.listens(self.first, "0.0.0.0"))

    async def test_a_configuration_that_changes_before_the_server_listens(self):
        """The last one is opened."""
        forwards = self.prepared(f"{self.first}=edge-1/a:1")
        new = f"{self.second}=edge-1/b:1"
        await forwards.configure([parse_forward(new)])
        forwards.listen()
        self.assertEqual([new], list(self.texts(forwards)))


class Client(Protocol):
    """A client whose ``lost`` fires at its end."""

    def __init__(self):
        self.lost = Deferred()

    def connectionLost(self, reason):
        """Notify the test."""
        self.lost.callback(None)
