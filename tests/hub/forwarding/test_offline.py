"""Requests through the hub without a cloud, and before it is known whether there is one."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost

from tests.hub.forwarding.world import KUBELET, OK, PODS, World


class OfflineTests(World):
    """There is no cloud."""

    def begin(self):
        """Start with silent servers."""
        self.silent.update(self.api_servers)
        super().begin()
        self.clock.advance(2.1)

    def test_answered_here(self):
        """Nobody tries to connect."""
        self.ask(PODS, KUBELET)
        self.assertEqual([(200, b"from the cache")], self.answered())
        self.assertEqual([], self.connections.keys)

    def test_return(self):
        """When a server is healthy again, it is asked."""
        self.silent.clear()
        self.pass_time(13)
        self.client = self.server.connect()
        self.ask("/version")
        self.answer(OK)
        self.assertEqual([(200, b"ok")], self.answered())


class StartTests(World):
    """The first checks are not over."""

    def begin(self):
        """Start with silent servers."""
        self.silent.update(self.api_servers)
        super().begin()

    def test_nothing_is_known(self):
        """A request waits a tenth of a second, and is then answered here if that is kept."""
        self.ask(PODS, KUBELET)
        self.pass_time(0.08, step=0.02)
        self.assertEqual([], self.offline.calls)
        self.pass_time(0.04, step=0.02)
        self.assertEqual([(200, b"from the cache")], self.answered())

    def test_nothing_is_kept(self):
        """What is not kept waits for the first check, and is never said not to be there before."""
        self.offline.keeps = succeed(False)
        self.ask(PODS, KUBELET)
        self.pass_time(1.0)
        self.assertEqual([], self.offline.calls)
        self.assertEqual(b"", bytes(self.client.sent))
        self.pass_time(1.5)
        self.assertEqual([(200, b"from the cache")], self.answered())

    def test_known_while_it_is_looked_for(self):
        """The first check may be over before it is known whether something is kept."""
        self.offline.keeps = keeps = Deferred()
        self.ask(PODS, KUBELET)
        self.pass_time(2.5)
        self.assertEqual(b"", bytes(self.client.sent))
        keeps.callback(False)
        self.assertEqual([(200, b"from the cache")], self.answered())

    def test_watches_wait(self):
        """A watch is not parked before it is known whether there is a cloud."""
        self.ask(f"{PODS}?watch=1", KUBELET)
        self.pass_time(1.0)
        self.assertEqual([], self.offline.calls)
        self.pass_time(1.5)
        self.assertEqual(1, len(self.offline.calls))

    def test_defects(self):
        """One that cannot be answered for a defect is told so, and the others are answered."""
        self.offline.keeps = succeed(False)
        answer, defects = self.offline.answer, [ZeroDivisionError("defect")]

        def fail_once(call):
            if defects:
                raise defects.pop()
            answer(call)

        self.patch(self.offline, "answer", fail_once)
        clients = [self.client, self.server.connect()]
        for self.client in clients:
            self.ask(PODS, KUBELET)
        self.pass_time(2.5)
        found = []
        for self.client in clients:
            found += self.answered()
        self.assertEqual([500, 200], [status for status, _ in found])
        self.assertIn(b"the hub has a defect", found[0][1])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_client_leaves(self):
        """One that does not wait is forgotten."""
        self.ask(PODS, KUBELET)
        self.client.break_off(ConnectionLost())
        self.pass_time(0.5)
        self.assertEqual([], self.offline.calls)


class QuickStartTests(World):
    """The first check is over soon."""

    def begin(self):
        """Do not start yet."""

    def test_known_in_time(self):
        """Requests that came before go to the API."""
        self.ask("/version")
        self.health.startService()
        self.settle()
        self.answer(OK)
        self.assertEqual([(200, b"ok")], self.answered())
