"""Tests of jobs in their own threads."""

from __future__ import annotations

import os
import queue
import threading

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.network.namespaces import run
from tests.steering.netlink.contract_address_sets import NAME, some
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.address_sets import AddressSets
from yurttunnel.steering.netlink.flows import Flows
from yurttunnel.steering.netlink.worker import DEADLINE, KernelWorker

SECONDS = 60.0
"""The timeout for the end of a thread on a loaded machine."""


class Reactor(Clock):
    """A clock, and a queue of calls from threads."""

    def __init__(self):
        super().__init__()
        self._calls = queue.Queue()

    def callFromThread(self, called, *arguments):
        """Queue a call; this runs in another thread."""
        self._calls.put((called, arguments))

    def call_next(self):
        """Make the next call, once a thread has queued it."""
        called, arguments = self._calls.get(timeout=SECONDS)
        called(*arguments)


class KernelWorkerTests(SynchronousTestCase):
    """When jobs run, and their results."""

    def setUp(self):
        """Make a running worker."""
        self.reactor = Reactor()
        self.worker = KernelWorker(self.reactor)
        self.worker.startService()

    def test_another_thread(self):
        """A job runs in another thread; its result is returned in the reactor's."""
        result = self.worker.run(threading.get_ident)
        self.assertNoResult(result)
        self.reactor.call_next()
        self.assertNotEqual(threading.get_ident(), self.successResultOf(result))

    def test_errors(self):
        """The caller gets the exception of a job, and the next one runs."""
        result = self.worker.run(lambda: 1 // 0)
        self.reactor.call_next()
        self.failureResultOf(result, ZeroDivisionError)
        result = self.worker.run(lambda: 7)
        self.reactor.call_next()
        self.assertEqual(7, self.successResultOf(result))

    def test_one_after_the_other(self):
        """A job waits for the previous one."""
        may_continue, begun = threading.Event(), []
        first = self.worker.run(lambda: may_continue.wait(SECONDS))
        second = self.worker.run(lambda: begun.append("second"))
        self.assertEqual([], begun)
        may_continue.set()
        self.reactor.call_next()
        self.assertTrue(self.successResultOf(first))
        self.assertNoResult(second)
        self.reactor.call_next()
        self.successResultOf(second)
        self.assertEqual(["second"], begun)

    def test_deadline(self):
        """The caller waits no longer; the next job still waits for the end of the thread."""
        may_continue = threading.Event()
        first = self.worker.run(lambda: may_continue.wait(SECONDS))
        self.reactor.advance(DEADLINE)
        failure = self.failureResultOf(first, SteeringFailed)
        self.assertIn("20 s", str(failure.value))
        second = self.worker.run(lambda: 7)
        may_continue.set()
        self.reactor.call_next()
        self.assertNoResult(second)
        self.reactor.call_next()
        self.assertEqual(7, self.successResultOf(second))

    def test_deadline_while_it_waits_for_another(self):
        """A job that has not started in time never starts."""
        may_continue, begun = threading.Event(), []
        self.worker.run(lambda: may_continue.wait(SECONDS)).addErrback(lambda _: None)
        second = self.worker.run(lambda: begun.append("second"))
        self.reactor.advance(DEADLINE)
        self.failureResultOf(second, SteeringFailed)
        may_continue.set()
        self.reactor.call_next()
        self.assertEqual("third", self.run_now(lambda: "third"))
        self.assertEqual([], begun)

    def run_now(self, job):
        """Run a job to its end."""
        result = self.worker.run(job)
        self.reactor.call_next()
        return self.successResultOf(result)

    def test_nothing_is_left_of_a_job(self):
        """Its thread ends with it, and no timer stays."""
        thread = self.run_now(threading.current_thread)
        thread.join(SECONDS)
        self.assertFalse(thread.is_alive())
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_no_thread_can_be_started(self):
        """The failure is reported, and the next job tries again."""

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        patch = self.patch(threading.Thread, "start", refuse)
        failure = self.failureResultOf(self.worker.run(lambda: 7), SteeringFailed)
        self.assertIn("cannot start a thread", str(failure.value))
        patch.restore()
        self.assertEqual(7, self.run_now(lambda: 7))

    def test_stop_waits_for_the_job(self):
        """It has stopped when no thread is left."""
        may_continue = threading.Event()
        result = self.worker.run(lambda: may_continue.wait(SECONDS))
        stopped = self.worker.stopService()
        self.assertNoResult(stopped)
        may_continue.set()
        self.reactor.call_next()
        self.successResultOf(result)
        self.assertTrue(self.successResultOf(stopped))
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_stop_does_not_wait_for_ever(self):
        """A thread that does not end is left alone."""
        may_continue = threading.Event()
        result = self.worker.run(lambda: may_continue.wait(SECONDS))
        stopped = self.worker.stopService()
        self.reactor.advance(DEADLINE)
        self.failureResultOf(result, SteeringFailed)
        self.assertFalse(self.successResultOf(stopped))
        may_continue.set()
        self.reactor.call_next()


class NamespaceTests(KernelTestCase):
    """The network namespaces of threads."""

    def setUp(self):
        """Make a worker."""
        super().setUp()
        self.reactor = Reactor()
        self.worker = KernelWorker(self.reactor)

    def test_in_the_namespace_of_the_caller(self):
        """A thread starts in the namespace of its caller at that time."""
        self.assertEqual(self.namespace(), self.asked(self.namespace))
        other = KernelTestCase()
        other.setUp()
        try:
            there = self.namespace()
            self.assertEqual(there, self.asked(self.namespace))
        finally:
            other.doCleanups()
        self.assertNotEqual(there, self.asked(self.namespace))

    @staticmethod
    def namespace():
        """Return the number of the thread's network namespace."""
        return os.stat("/proc/thread-self/ns/net").st_ino

    def asked(self, job):
        """Run a job in a thread."""
        result = self.worker.run(job)
        self.reactor.call_next()
        return self.successResultOf(result)

    def test_sets_and_flows_by_threads(self):
        """Both work in threads as they do here."""
        sets, flows = AddressSets(self.worker.run, self.reactor), Flows(self.worker.run)
        for call, desired in (
            (lambda: sets.put(NAME, 4, some("10.0.0.1")), True),
            (lambda: sets.remove(NAME), True),
            (lambda: flows.cut(4, {10250}, bool), 0),
        ):
            result = call()
            self.reactor.call_next()
            self.assertEqual(desired, self.successResultOf(result))
        self.assertEqual("", run("ipset", "list", "-n"))
