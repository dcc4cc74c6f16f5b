"""Tests of the number of pipes between sockets, and their reuse."""

from __future__ import annotations

import fcntl
import os
import resource
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.sockets.lab import descriptors_in_use
from yurttunnel.proxy.sockets.pipes import PIPE_BYTES, Pipe, PipePool
from yurttunnel.proxy.sockets.tcp import max_connections


class PipePoolTests(SynchronousTestCase):
    """Pipes are limited, and few are kept."""

    def setUp(self) -> None:
        """Start without pipes."""
        self.before = descriptors_in_use()

    def test_pipe_is_large_and_non_blocking(self) -> None:
        """It has the requested size, which any user may have."""
        pipe = Pipe()
        self.addCleanup(pipe.close)
        self.assertEqual(fcntl.fcntl(pipe.read_end, fcntl.F_GETPIPE_SZ), PIPE_BYTES)
        self.assertRaises(BlockingIOError, os.read, pipe.read_end, 1)

    def test_a_pipe_is_used_again_unless_something_is_in_it(self) -> None:
        """Data left in it would reach another client."""
        pool = PipePool()
        self.addCleanup(pool.close)
        first = pool.acquire()
        pool.release(first)
        self.assertIs(pool.acquire(), first)
        first.size = os.write(first.write_end, b"left")
        pool.release(first)
        second = pool.acquire()
        self.assertIsNot(second, first)
        self.assertRaises(BlockingIOError, os.read, second.read_end, 1)
        pool.release(second)

    def test_limits_of_all_and_of_idle_pipes(self) -> None:
        """At the end none is kept."""
        pool = PipePool(max_pipes=3, max_idle=1)
        taken = [pool.acquire() for _ in range(3)]
        self.assertIsNone(pool.acquire())
        for pipe in taken:
            pool.release(pipe)
        self.assertEqual(descriptors_in_use(), self.before + 2)
        pool.close()
        self.assertEqual(descriptors_in_use(), self.before)

    def test_for_one_that_is_given_back_there_is_one(self) -> None:
        """This holds whether it is kept or closed."""
        for max_idle in (1, 0):
            pool = PipePool(max_pipes=2, max_idle=max_idle)
            first, second = pool.acquire(), pool.acquire()
            pool.release(first)
            third = pool.acquire()
            self.assertIsNotNone(third)
            self.assertIsNone(pool.acquire())
            pool.release(second)
            pool.release(third)
            pool.close()

    def test_without_descriptors_there_is_none(self) -> None:
        """The relay copies instead."""
        with mock.patch("os.pipe2", side_effect=OSError(24, "Too many open files")):
            self.assertIsNone(PipePool().acquire())

    def test_a_user_who_has_many_pipes_gets_small_ones(self) -> None:
        """They work, too."""
        with mock.patch("fcntl.fcntl", side_effect=PermissionError(1, "not permitted")):
            pipe = Pipe()
        self.addCleanup(pipe.close)
        self.assertEqual(os.write(pipe.write_end, b"works"), 5)


class MaxConnectionsTests(SynchronousTestCase):
    """The maximum number of connections depends on the limit of open files."""

    def test_half_of_the_descriptors_are_for_connections_of_two_each(self) -> None:
        """According to the current limit."""
        for soft, expected in ((65536, 16384), (1024, 256), (2, 1)):
            self.patch(resource, "getrlimit", lambda which, soft=soft: (soft, 524288))
            self.assertEqual(max_connections(), expected)
