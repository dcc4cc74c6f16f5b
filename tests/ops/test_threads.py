"""Threads for calls that may never return."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from functools import partial

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from tests.ops.contract_jobs import JobsContract
from yurttunnel.ops.threads import JobThread, run_in_new_thread

PROGRAM = """
import os
from twisted.internet import reactor
from yurttunnel.ops.threads import run_in_new_thread
reader, writer = os.pipe()
def begin():
    run_in_new_thread(reactor, "waits", lambda size: os.read(reader, size), 1)
    reactor.callLater(0, reactor.stop)
reactor.callWhenRunning(begin)
reactor.run()
"""
"""One of the threads reads a pipe to which nobody writes."""


class OwnThreadTests(TestCase):
    """``run_in_new_thread`` calls a function in a new thread."""

    async def test_result(self):
        """The function runs in a thread of the given name; the result comes to the main thread."""

        def work(argument):
            return argument, threading.current_thread().name

        result = await run_in_new_thread(reactor, "a name", work, 7)
        self.assertEqual(result, (7, "a name"))
        self.assertIs(threading.current_thread(), threading.main_thread())

    async def test_error(self):
        """An exception is returned to the caller."""
        await self.assertFailure(
            run_in_new_thread(reactor, "fails", lambda number: 1 / number, 0), ZeroDivisionError
        )

    def test_the_process_ends(self):
        """A call that never returns does not keep the process alive."""
        ended = subprocess.run([sys.executable, "-c", PROGRAM], timeout=60, check=False)
        self.assertEqual(ended.returncode, 0)


class JobThreadTests(JobsContract, TestCase):
    """``JobThread`` runs jobs in one thread."""

    def make_jobs(self):
        """Make a job thread that ends with the test."""
        thread = JobThread(reactor, "a name")
        self.addCleanup(thread.end)
        return thread

    async def test_one_thread(self):
        """All jobs share one thread; after the end, another job starts a new thread."""
        jobs = self.make_jobs()
        first, second = jobs.run(threading.current_thread), jobs.run(threading.current_thread)
        jobs.end()
        thread = await first
        self.assertEqual("a name", thread.name)
        self.assertIs(thread, await second)
        thread.join(30)
        self.assertFalse(thread.is_alive())
        self.assertIsNot(thread, await jobs.run(threading.current_thread))

    async def test_nothing_is_held(self):
        """A job's arguments are freed when it has ended, even without a next job."""
        large = Large()
        reference = weakref.ref(large)
        await self.make_jobs().run(partial(id, large))
        del large
        # The thread releases the job a moment after it has sent the result.
        for _ in range(1000):
            if reference() is None:
                break
            await deferLater(reactor, 0.01)
        self.assertIsNone(reference())


class Large:
    """An object that supports weak references."""
