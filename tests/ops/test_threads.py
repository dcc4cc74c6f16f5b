"""Threads for calls that may never end."""

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
"""One of its threads reads a pipe to which nobody writes."""


class OwnThreadTests(TestCase):
    """``run_in_new_thread`` calls a function elsewhere."""

    async def test_result(self):
        """It is given in the reactor's thread; the call was in another, with the name."""

        def work(argument):
            return argument, threading.current_thread().name

        result = await run_in_new_thread(reactor, "a name", work, 7)
        self.assertEqual(result, (7, "a name"))
        self.assertIs(threading.current_thread(), threading.main_thread())

    async def test_error(self):
        """Whatever is raised comes to who asks."""
        await self.assertFailure(
            run_in_new_thread(reactor, "fails", lambda number: 1 / number, 0), ZeroDivisionError
        )

    def test_the_process_ends(self):
        """A call that does not end does not keep it."""
        ended = subprocess.run([sys.executable, "-c", PROGRAM], timeout=60, check=False)
        self.assertEqual(ended.returncode, 0)


class JobThreadTests(JobsContract, TestCase):
    """``JobThread`` runs jobs in one thread."""

    def make_jobs(self):
        """Make one, whose thread ends with the test."""
        thread = JobThread(reactor, "a name")
        self.addCleanup(thread.end)
        return thread

    async def test_one_thread(self):
        """It is the same for all, and ends; another one begins when there is a job again."""
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
        """What a job had is free once it has ended, though no other one follows."""
        large = Large()
        gone = weakref.ref(large)
        await self.make_jobs().run(partial(id, large))
        del large
        # The thread lets go of it a moment after its result is on its way.
        for _ in range(1000):
            if gone() is None:
                break
            await deferLater(reactor, 0.01)
        self.assertIsNone(gone())


class Large:
    """Something that would be missed."""
