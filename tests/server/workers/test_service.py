"""The workers of a server: started, started again, drained and stopped."""

from __future__ import annotations

from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.snapshots import snapshot
from tests.pki.support import Issuer
from tests.server.workers.processes import FakeProcesses
from tests.server.workers.test_running import SETTINGS, FirstProcessForTests
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.service import (
    EXIT_TIMEOUT,
    FIRST_DELAY,
    LONGEST_DELAY,
    SETTLED,
    Workers,
)

STEP = FIRST_DELAY / 10
"""Seconds that pass at a time."""


class WorkersTests(SynchronousTestCase):
    """Three processes, of which two are played by the test."""

    def setUp(self):
        """Start them."""
        self.processes = FakeProcesses()
        self.clock = self.processes.clock
        self.addCleanup(self.processes.close)
        self.first = FirstProcessForTests(self, self.clock)
        self.contexts = SimpleNamespace(on_rotated=[], credentials=Issuer.make(self).server())
        self.workers = Workers(
            self.processes.reactor,
            3,
            SETTINGS,
            self.first.parts,
            self.contexts,
            self.processes.spawn,
        )
        self.rooms = []
        self.workers.on_room.append(self.rooms.append)
        self.workers.startService()
        self.one, self.two = self.processes.started
        self.addCleanup(self.stop)

    def stop(self):
        """Stop what still runs, and leave no timer."""
        stopped = self.workers.stopService() if self.workers.running else None
        for process in self.processes.started:
            process.end()
        self.clock.advance(0)
        if stopped is not None:
            self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def be_ready(self, process):
        """Have a process say that it takes connections."""
        process.be_ready()
        self.processes.settle()

    def pass_time(self, seconds):
        """Let time pass; then all that run report."""
        self.clock.advance(seconds)
        for process in self.processes.started:
            if not process.ended:
                process.channel.send(messages.FIGURES, {"changed": []})
        self.processes.settle()

    def restarted_after(self):
        """Wait until a process is started; the seconds."""
        before, began = len(self.processes.started), self.clock.seconds()
        while len(self.processes.started) == before:
            self.pass_time(STEP)
            self.assertLess(self.clock.seconds() - began, 2 * LONGEST_DELAY)
        return self.clock.seconds() - began

    def test_readiness_names_who_is_missing(self):
        """Until all take connections."""
        self.assertEqual(self.workers.problem(), "these workers are not running: 1, 2")
        self.be_ready(self.two)
        self.assertEqual(self.workers.problem(), "these workers are not running: 1")
        self.assertEqual(self.rooms, [2])
        self.be_ready(self.one)
        self.assertIsNone(self.workers.problem())
        self.assertEqual(self.workers.stats().ready, 2)

    def test_a_worker_is_started_again(self):
        """Soon, and later each time that it ends at once; the other is left alone."""
        self.be_ready(self.two)
        delays = []
        for _ in range(9):
            self.processes.started[-1 if delays else 0].end(11)
            delays.append(self.restarted_after())
        expected = [min(FIRST_DELAY * 2**number, LONGEST_DELAY) for number in range(9)]
        for delay, least in zip(delays, expected, strict=True):
            self.assertLess(abs(delay - least), 2 * STEP)
        self.assertEqual(self.workers.stats().restarts, 9)
        self.assertFalse(self.two.killed)
        # One that has worked for long begins with the shortest delay.
        for _ in range(int(SETTLED) + 1):
            self.pass_time(1)
        self.processes.started[-1].end(11)
        self.assertLess(self.restarted_after(), FIRST_DELAY + 2 * STEP)

    def test_who_cannot_be_started_is_tried_again(self):
        """As one that has ended."""
        self.processes.fails = True
        self.one.end(11)
        self.clock.advance(FIRST_DELAY)
        self.assertEqual(self.workers.stats().restarts, 2)
        self.processes.fails = False
        self.restarted_after()
        self.assertEqual(len(self.processes.started), 3)

    def test_credentials_reach_all(self):
        """At the start, after a rotation, and who is started after it."""
        credentials = self.contexts.credentials = Issuer.make(self).server()
        for callback in self.contexts.on_rotated:
            callback()
        self.one.end(11)
        self.restarted_after()
        again = self.processes.started[-1]
        for process in (self.two, again):
            self.processes.read(process)
            told = [each for each in process.messages if each.kind == messages.CREDENTIALS]
            last = messages.credentials_from_fields(told[-1].fields)
            self.assertEqual(last.certificate, credentials.certificate)
        self.assertEqual(again.kinds, [messages.START, messages.CREDENTIALS])

    def test_all_tell_their_agents_of_servers(self):
        """How many there are now."""
        self.workers.tell_servers(3)
        for process in (self.one, self.two):
            self.assertEqual(self.processes.read(process)[-1], messages.SERVERS)
            self.assertEqual(process.messages[-1].fields, {"servers": 3})

    def test_all_are_verbose_together(self):
        """From when they are told on, and who is started meanwhile from its start."""
        self.workers.be_verbose(True)
        self.assertEqual(self.processes.read(self.two)[-1], messages.VERBOSE)
        self.assertEqual(self.two.messages[-1].fields, {"verbose": True})
        self.one.end(11)
        self.restarted_after()
        again = self.processes.started[-1]
        self.processes.read(again)
        self.assertTrue(again.messages[0].fields["verbose"])
        self.workers.be_verbose(False)
        for process in (self.two, again):
            self.processes.read(process)
            self.assertEqual(process.messages[-1].fields, {"verbose": False})

    def test_it_says_who_has_the_sessions_of_a_node(self):
        """And which process that is."""
        self.be_ready(self.two)
        changed = [
            messages.snapshot_to_fields(snapshot(node=node, session_id=node))
            for node in ("edge-1", "edge-2")
        ]
        self.two.channel.send(messages.FIGURES, {"changed": changed})
        self.processes.settle()
        self.assertEqual(self.workers.sessions_of("edge-2"), {1: 0, 2: 1})
        self.assertEqual(self.workers.sessions_of(None), {1: 0, 2: 2})
        self.assertEqual(self.workers.pids(), {1: self.one.pid, 2: self.two.pid})
        self.one.end(11)
        self.assertEqual(self.workers.pids(), {2: self.two.pid})
        waiting = self.workers.ask_page(2, "stacks", b"GET", {})
        self.assertEqual(self.processes.read(self.two)[-1], messages.PAGE)
        self.two.end(11)
        self.assertEqual(self.successResultOf(waiting).status, 503)

    def test_a_drain_starts_none_again(self):
        """All are told, and one that ends meanwhile has ended for good."""
        self.one.end(11)
        self.workers.drain("the server is about to stop")
        self.assertEqual(self.processes.read(self.two)[-1], messages.DRAIN)
        self.two.end()
        self.clock.advance(10 * LONGEST_DELAY)
        self.assertEqual(len(self.processes.started), 2)
        self.assertEqual(self.workers.restarts, 1)

    def test_who_does_not_end_in_time_is_killed(self):
        """The server stops all the same."""
        stopped = self.workers.stopService()
        self.one.end()
        for _ in range(int(SETTINGS.drain_timeout + EXIT_TIMEOUT)):
            self.assertNoResult(stopped)
            self.pass_time(1)
        self.clock.advance(1)
        self.assertTrue(self.two.killed)
        self.two.end(9)
        self.clock.advance(0)
        self.successResultOf(stopped)

    def test_a_node_is_in_one_process_only(self):
        """That is what its placement says, and the first process is one of them."""
        self.assertEqual([self.workers.worker_for(n) for n in range(6)], [0, 1, 2, 0, 1, 2])
