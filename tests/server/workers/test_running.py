"""One worker process as the first process sees it, from its start to its end."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from dataclasses import replace

from cryptography.hazmat.primitives.serialization import Encoding
from twisted.logger import formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer
from tests.server.workers.processes import FakeProcesses
from yurttunnel.ops.debug.pages import Answer
from yurttunnel.pki.identity import NodeIdentity, identity_from_certificate
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.pages import ANSWER_SECONDS
from yurttunnel.server.workers.running import (
    SILENCE,
    STACK_TIME,
    START_TIMEOUT,
    FirstProcess,
    RunningWorker,
)
from yurttunnel.server.workers.settings import WorkerSettings
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation

SETTINGS = WorkerSettings(
    number=1,
    process="00" * 16,
    resume_window=30.0,
    return_grace=0.8,
    drain_timeout=30.0,
    budget=1 << 24,
    audited=True,
    verbose=False,
)
FIGURES = {"growth": {"dials": {"REFUSED": 2}}, "memory": 7, "lag": 0.25, "changed": []}


class FirstProcessForTests:
    """What a worker needs of the first process, and what it was told."""

    def __init__(self, test, clock):
        self.revoked: set[NodeIdentity] = set()
        self.audit: list[bytes] = []
        self.ended: list[tuple[str, str]] = []
        self.certificate = Issuer.make(test).node().certificate
        self.identity = identity_from_certificate(self.certificate)
        self.parts = FirstProcess(
            registry=SessionRegistry(clock),
            budget=MemoryBudget(1 << 24),
            identity_of=self.identity_of,
            is_revoked=lambda identity: identity in self.revoked,
            replicas=lambda: 2,
            drains=lambda ways: None,
            ended=lambda node, why: self.ended.append((node, why)),
            counters=TunnelCounters(),
            refusals=Counter(),
            audit=self.audit.append,
        )

    def identity_of(self, certificate):
        """Let in who is not revoked."""
        if self.identity in self.revoked:
            raise Violation(Code.REVOKED, "it has been revoked")
        return identity_from_certificate(certificate)


class RunningWorkerTests(SynchronousTestCase):
    """A worker whose process is played by the test."""

    def setUp(self):
        """Start it."""
        self.processes = FakeProcesses()
        self.addCleanup(self.processes.close)
        self.first = FirstProcessForTests(self, self.processes.clock)
        self.rooms, self.gone = [], []
        self.worker = self.start()
        (self.process,) = self.processes.started
        self.addCleanup(self.end)

    def start(self):
        """Start a worker."""
        return RunningWorker(
            self.processes.reactor,
            SETTINGS,
            self.first.parts,
            self.processes.spawn,
            lambda: self.rooms.append(1),
            self.gone.append,
        )

    def end(self):
        """Leave no timer and no socket."""
        if not self.gone:
            self.process.end()
        self.processes.settle()
        self.assertEqual(self.processes.clock.getDelayedCalls(), [])
        self.assertEqual(self.processes.reactor.getReaders(), [])

    def tell(self, kind, fields=None, data=b""):
        """Have the process say something."""
        self.process.channel.send(kind, fields, data)
        self.processes.settle()

    def be_ready(self):
        """Have the process say that it takes connections."""
        self.process.be_ready()
        self.processes.settle()

    def test_it_is_told_first_what_it_is_to_be(self):
        """Before anything else."""
        self.worker.check("edge-1")
        self.assertEqual(self.processes.read(self.process), [messages.START, messages.CHECK])
        self.assertEqual(WorkerSettings(**self.process.messages[0].fields), SETTINGS)

    def test_it_takes_no_agent_before_it_is_ready(self):
        """Then it does, and says so."""
        passed, kept = socket.socketpair()
        with passed, kept:
            self.assertFalse(self.worker.take_agent(passed, b"hello"))
            self.be_ready()
            self.assertEqual(self.rooms, [1])
            self.assertTrue(self.worker.take_agent(passed, b"hello"))
        self.assertEqual(self.processes.read(self.process)[-1], messages.AGENT)
        self.assertEqual(self.process.messages[-1].data, b"hello")
        self.assertIsNotNone(self.process.messages[-1].connection)

    def test_it_says_when_there_is_room_again(self):
        """When it has read what it was given."""
        self.be_ready()
        passed, kept = socket.socketpair()
        with passed, kept:
            taken = 0
            while self.worker.take_agent(passed, bytes(1000)):
                taken += 1
            self.assertGreater(taken, 10)
            self.assertEqual(self.rooms, [1])
            self.processes.read(self.process)
            self.processes.settle()
            self.assertEqual(self.rooms, [1, 1])
            self.assertTrue(self.worker.take_agent(passed, b""))

    def test_a_worker_that_hangs_is_killed(self):
        """It is known by its reports; what it has waiting is given up."""
        self.be_ready()
        for _ in range(2 * SILENCE):
            self.processes.clock.advance(1)
            self.tell(messages.FIGURES, FIGURES)
        self.assertFalse(self.process.killed)
        for _ in range(SILENCE):
            self.assertEqual(self.process.signals, [])
            self.processes.clock.advance(1)
        self.assertFalse(self.worker.is_ready)
        self.processes.clock.advance(STACK_TIME)
        self.assertTrue(self.process.killed)
        self.process.end(9)
        self.assertEqual(self.gone, [f"it has hung: nothing was heard of it for {SILENCE} s"])

    def test_a_worker_that_hangs_says_where(self):
        """It is aborted, at which it leaves its stack for the log, and has a second for that."""
        seen = self.logged()
        self.be_ready()
        for _ in range(SILENCE):
            self.processes.clock.advance(1)
        self.assertEqual(self.process.signals, [signal.SIGABRT])
        self.processes.clock.advance(STACK_TIME / 2)
        self.assertEqual(self.process.signals, [signal.SIGABRT])
        stack = 'Thread 1:\n  File "x.py", line 7 in hang'
        self.process.leave_stack(f"Fatal Python error: Aborted\n\n{stack}\n".encode())
        self.process.end(6)
        (event,) = [each for each in seen if "stack" in each]
        self.assertEqual(formatEvent(event), f"worker 1 was here when it failed:\n{stack}")

    def test_a_worker_that_ends_in_order_says_nothing(self):
        """Nor is it aborted when the end of its channel is seen before that of the process."""
        seen = self.logged()
        self.be_ready()
        self.process.close()
        self.processes.settle()
        self.assertNotIn(signal.SIGABRT, self.process.signals)
        self.process.end()
        self.assertEqual([each for each in seen if "stack" in each], [])

    def test_a_pause_of_the_first_process_is_no_silence(self):
        """However long it was stopped, that is one second without a report."""
        self.be_ready()
        self.processes.clock.advance(10 * SILENCE)
        self.assertFalse(self.process.killed)

    def test_a_worker_that_does_not_start_is_killed(self):
        """It has more time for that than for a report."""
        for _ in range(START_TIMEOUT):
            self.assertEqual(self.process.signals, [])
            self.processes.clock.advance(1)
        self.processes.clock.advance(STACK_TIME)
        self.assertTrue(self.process.killed)

    def test_the_status_says_why_it_has_ended(self):
        """Though the end of its channel is known first; the process need not be killed then."""
        self.process.close()
        self.processes.settle()
        self.assertEqual(self.gone, [])
        self.process.end(9)
        self.assertEqual(self.gone, ["it was killed by signal 9"])

    def test_an_exit_in_order_is_told_as_such(self):
        """Nobody has asked for it."""
        self.process.end()
        self.assertEqual(self.gone, ["it has exited"])

    def test_what_it_has_left_behind_counts(self):
        """Its last lines and figures are read when its end is known before."""
        self.process.channel.send(messages.AUDIT, {}, b"line")
        self.process.channel.send(messages.FIGURES, FIGURES)
        self.process.end()
        self.assertEqual(self.first.audit, [b"line"])
        self.assertEqual(self.first.parts.counters.dials[Code.REFUSED], 2)
        self.assertEqual(self.worker.memory, 0)

    def test_its_figures_are_added(self):
        """Counters by what they have grown, others as they are."""
        self.tell(messages.FIGURES, FIGURES)
        self.tell(messages.FIGURES, FIGURES)
        self.assertEqual(self.first.parts.counters.dials[Code.REFUSED], 4)
        self.assertEqual((self.worker.memory, self.worker.lag), (7, 0.25))

    def test_the_first_process_decides_who_comes_in(self):
        """By the certificate alone."""
        der = self.first.certificate.public_bytes(Encoding.DER)
        self.tell(messages.ADMIT, {"number": 1}, der)
        self.first.revoked.add(self.first.identity)
        self.tell(messages.ADMIT, {"number": 2}, der)
        self.processes.read(self.process)
        admitted, refused = self.process.messages[-2:]
        self.assertEqual((admitted.kind, admitted.fields["number"]), (messages.ADMITTED, 1))
        written = admitted.fields["identity"]
        self.assertEqual(messages.identity_from_fields(written), self.first.identity)
        self.assertEqual(admitted.fields["servers"], 2)
        self.assertEqual((refused.kind, refused.fields["number"]), (messages.REFUSED, 2))
        self.assertEqual(refused.fields["code"], Code.REVOKED.value)

    def test_what_was_revoked_ends_and_nothing_else(self):
        """A newer certificate of the same node is not that which was revoked."""
        newer = replace(self.first.identity, not_before=self.first.identity.not_after)
        self.first.revoked.add(self.first.identity)
        for identity in (newer, self.first.identity):
            self.tell(messages.CHECKED, messages.identity_to_fields(identity))
        self.assertEqual(self.processes.read(self.process).count(messages.END), 1)
        fields = self.process.messages[-1].fields
        self.assertEqual(messages.identity_from_fields(fields["identity"]), self.first.identity)

    def logged(self):
        """Return the list of events that are logged from now on."""
        seen = []
        globalLogPublisher.addObserver(seen.append)
        self.addCleanup(globalLogPublisher.removeObserver, seen.append)
        return seen

    def test_what_it_logs_is_logged_as_it_is(self):
        """By the same format, and with the node that it is about."""
        seen = self.logged()
        fields = {"node": "{n}"}
        written = {"level": "warn", "namespace": "x.y", "format": "a {node}", "fields": fields}
        self.tell(messages.LOG, written)
        (event,) = [each for each in seen if each["log_namespace"] == "x.y"]
        self.assertEqual(formatEvent(event), "a {n}")
        self.assertEqual((event["log_format"], event["worker"]), ("a {node}", 1))

    def ask_page(self):
        """Ask for its page of sessions; the number of the question, and who waits."""
        waiting = self.worker.ask_page("sessions", b"GET", {"node": "n"})
        self.assertNoResult(waiting)
        self.processes.read(self.process)
        question = self.process.messages[-1]
        self.assertEqual(question.kind, messages.PAGE)
        number = question.fields.pop("number")
        expected = {"name": "sessions", "method": "GET", "parameters": {"node": "n"}}
        self.assertEqual(question.fields, expected)
        return number, waiting

    def test_a_page_is_as_the_worker_makes_it(self):
        """Each answer goes to whoever has asked for it."""
        self.be_ready()
        (one, first), (two, second) = self.ask_page(), self.ask_page()
        for number in (two, one):
            fields = {"status": 201, "content_type": "text/x", "body": f"page {number}"}
            self.tell(messages.PAGE_ANSWER, {"number": number, **fields})
        answers = [self.successResultOf(each) for each in (first, second)]
        bodies = [f"page {number}".encode() for number in (one, two)]
        self.assertEqual(answers, [Answer(b"text/x", body, 201) for body in bodies])

    def test_a_page_that_is_not_made_is_not_waited_for(self):
        """By time, and by the end of the worker; an answer that comes late is dropped."""
        self.be_ready()
        number, waiting = self.ask_page()
        self.pass_seconds(ANSWER_SECONDS)
        self.assertEqual(self.successResultOf(waiting).status, 504)
        fields = {"status": 200, "content_type": "text/x", "body": ""}
        self.tell(messages.PAGE_ANSWER, {"number": number, **fields})
        _, waiting = self.ask_page()
        self.process.end(9)
        self.assertEqual(self.successResultOf(waiting).status, 503)

    def pass_seconds(self, seconds):
        """Let time pass in which the worker reports."""
        for _ in range(int(seconds)):
            self.processes.clock.advance(1)
            self.tell(messages.FIGURES, FIGURES)

    def test_a_process_that_cannot_be_started_costs_no_descriptors(self):
        """Whoever starts it is told."""
        self.processes.fails = True
        before = len(os.listdir("/proc/self/fd"))
        with self.assertRaises(OSError):
            self.start()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
