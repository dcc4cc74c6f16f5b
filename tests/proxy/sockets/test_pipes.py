"""Tests of the number of pipes between sockets, and their reuse."""

from __future__ import annotations

import fcntl
import os
import resource
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.sockets.lab import descriptors_in_use
from yurttunnel.proxy.sockets.pipes import PIPE_BYTES, Pipe, PipePool
from yurttunnel.proxy.sockets.tcp import most_connections


class PipePoolTests(SynchronousTestCase):
    """Pipes are limited, and few are kept."""

    def setUp(self) -> None:
        """Start without pipes."""
        self.before = descriptors_in_use()

    def test_a_pipe_holds_much_and_never_blocks(self) -> None:
        """It has the requested size, which any user may have."""
        pipe = Pipe()
        self.addCleanup(pipe.close)
        self.assertEqual(fcntl.fcntl(pipe.exit, fcntl.F_GETPIPE_SZ), PIPE_BYTES)
        self.assertRaises(BlockingIOError, os.read, pipe.exit, 1)

    def test_a_pipe_is_used_again_unless_something_is_in_it(self) -> None:
        """Data left in it would reach another client."""
        pool = PipePool()
        self.addCleanup(pool.close)
        first = pool.take()
        pool.give_back(first)
        self.assertIs(pool.take(), first)
        first.held = os.write(first.entrance, b"left")
        pool.give_back(first)
        second = pool.take()
        self.assertIsNot(second, first)
        self.assertRaises(BlockingIOError, os.read, second.exit, 1)
        pool.give_back(second)

    def test_there_are_so_many_and_fewer_are_kept(self) -> None:
        """At the end none is kept."""
        pool = PipePool(most=3, most_idle=1)
        taken = [pool.take() for _ in range(3)]
        self.assertIsNone(pool.take())
        for pipe in taken:
            pool.give_back(pipe)
        self.assertEqual(descriptors_in_use(), self.before + 2)
        pool.close()
        self.assertEqual(descriptors_in_use(), self.before)

    def test_for_one_that_is_given_back_there_is_one(self) -> None:
        """This holds whether it is kept or closed."""
        for most_idle in (1, 0):
            pool = PipePool(most=2, most_idle=most_idle)
            first, second = pool.take(), pool.take()
            pool.give_back(first)
            third = pool.take()
            self.assertIsNotNone(third)
            self.assertIsNone(pool.take())
            pool.give_back(second)
            pool.give_back(third)
            pool.close()

    def test_without_descriptors_there_is_none(self) -> None:
        """The relay copies instead."""
        with mock.patch("os.pipe2", side_effect=OSError(24, "Too many open files")):
            self.assertIsNone(PipePool().take())

    def test_a_user_who_has_many_pipes_gets_small_ones(self) -> None:
        """They work, too."""
        with mock.patch("fcntl.fcntl", side_effect=PermissionError(1, "not permitted")):
            pipe = Pipe()
        self.addCleanup(pipe.close)
        self.assertEqual(os.write(pipe.entrance, b"works"), 5)


class MostConnectionsTests(SynchronousTestCase):
    """The maximum number of connections depends on the limit of open files."""

    def test_half_of_the_descriptors_are_for_connections_of_two_each(self) -> None:
        """According to the current limit."""
        for soft, most in ((65536, 16384), (1024, 256), (2, 1)):
            self.patch(resource, "getrlimit", lambda which, soft=soft: (soft, 524288))
            self.assertEqual(most_connections(), most)
