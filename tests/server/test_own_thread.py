"""Threads for calls that may never end."""

from __future__ import annotations

import subprocess
import sys
import threading

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from yurttunnel.server.audit_log import in_own_thread

PROGRAM = """
import os
from twisted.internet import reactor
from yurttunnel.server.audit_log import in_own_thread
reader, writer = os.pipe()
def begin():
    in_own_thread(reactor, "waits", lambda size: os.read(reader, size), 1)
    reactor.callLater(0, reactor.stop)
reactor.callWhenRunning(begin)
reactor.run()
"""
"""One of its threads reads a pipe to which nobody writes."""


class OwnThreadTests(TestCase):
    """``in_own_thread`` calls a function elsewhere."""

    async def test_result(self):
        """It is given in the reactor's thread; the call was in another, with the name."""

        def work(argument):
            return argument, threading.current_thread().name

        result = await in_own_thread(reactor, "a name", work, 7)
        self.assertEqual(result, (7, "a name"))
        self.assertIs(threading.current_thread(), threading.main_thread())

    async def test_error(self):
        """Whatever is raised comes to who asks."""
        await self.assertFailure(
            in_own_thread(reactor, "fails", lambda number: 1 / number, 0), ZeroDivisionError
        )

    def test_the_process_ends(self):
        """A call that does not end does not keep it."""
        ended = subprocess.run([sys.executable, "-c", PROGRAM], timeout=60, check=False)
        self.assertEqual(ended.returncode, 0)
