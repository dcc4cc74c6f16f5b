"""Listening ports, and the errors when they cannot be bound."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import ExitStack
from ipaddress import ip_address

from twisted.internet import tcp
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import ServerFactory
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.descriptors import no_descriptor_left
from yurttunnel.ops import listen
from yurttunnel.ops.listen import BACKLOG, CannotListen, listen_tcp, listen_unix


class RefusingReactor(MemoryReactorClock):
    """A reactor on which no TCP port can be bound."""

    def __init__(self, reason):
        super().__init__()
        self.reason = reason

    def listenTCP(self, port, factory, backlog=50, interface=""):  # Twisted's name
        """Fail like the real reactor."""
        raise CannotListenError(interface, port, self.reason)


class ExhaustedReactor(MemoryReactorClock):
    """A reactor whose next port takes the last descriptor, until ``afterwards`` is closed."""

    def __init__(self):
        super().__init__()
        self.afterwards = ExitStack()

    def listenTCP(self, port, factory, backlog=50, interface=""):  # Twisted's name
        """Listen on a real socket."""
        listening = tcp.Port(port, factory, backlog, interface, self)
        listening.startListening()
        self.afterwards.enter_context(no_descriptor_left())
        return listening


class ListenTcpTests(SynchronousTestCase):
    """``listen_tcp`` binds a port, or reports which one it cannot bind and why."""

    def test_a_port(self):
        """The port is bound on the given address, with a backlog for a burst of connections."""
        reactor, factory = MemoryReactorClock(), ServerFactory()
        listen_tcp(reactor, "--meta-port", "127.0.0.1", 10265, factory)
        self.assertEqual(reactor.tcpServers, [(10265, factory, BACKLOG, "127.0.0.1")])

    def test_the_last_descriptor(self):
        """A port that takes the last file descriptor is set up as usual and stays open."""
        reactor, tuned = ExhaustedReactor(), []

        def tune(listening):
            tuned.append((listening.family, listening.getsockname()[1]))

        with reactor.afterwards:
            port = listen_tcp(reactor, "--meta-port", "127.0.0.1", 0, ServerFactory(), tune=tune)
        self.assertEqual([(socket.AF_INET, port.getHost().port)], tuned)
        self.assertEqual(tuned[0][1], port.socket.getsockname()[1])
        stopped = port.stopListening()
        reactor.advance(0)
        self.assertIsNone(self.successResultOf(stopped))

    def test_failures(self):
        """An error is one line that names the flag, the address and the fix."""
        own = {ip_address(text) for text in ("::1", "2001:db8::7", "192.0.2.7")}
        self.patch(listen, "own_addresses", lambda: own)
        for reason, host, expected in (
            (
                OSError(errno.EADDRINUSE, "Address already in use"),
                "127.0.0.1",
                "--meta-port: cannot listen on 127.0.0.1:80: another process listens there, "
                "or this one for another flag: stop it, or choose another port",
            ),
            (
                OSError(errno.EADDRNOTAVAIL, "x"),
                "2001:db8::1",
                "--meta-port: cannot listen on [2001:db8::1]:80: this machine has no such address: "
                "choose one of its own, 192.0.2.7, 2001:db8::7, ::1",
            ),
            (
                OSError(errno.EACCES, "x"),
                "127.0.0.1",
                "--meta-port: cannot listen on 127.0.0.1:80: ports below 1024 need root or the "
                "capability CAP_NET_BIND_SERVICE",
            ),
            (
                socket.gaierror(-2, "Name or service not known"),
                "nowhere",
                "--meta-port: cannot listen on nowhere:80: Name or service not known",
            ),
        ):
            error = self.assertRaises(
                CannotListen,
                listen_tcp,
                RefusingReactor(reason),
                "--meta-port",
                host,
                80,
                ServerFactory(),
            )
            self.assertIsInstance(error, SystemExit)
            self.assertEqual(error.code, expected)


class ListenUnixTests(SynchronousTestCase):
    """``listen_unix`` creates a socket file, and replaces nothing but stale sockets."""

    def setUp(self):
        """Choose a path in a directory of the test."""
        self.reactor = MemoryReactorClock()
        self.directory = self.mktemp()
        os.makedirs(self.directory)
        # The path is relative, because paths of sockets must be short.
        self.path = os.path.join(os.path.relpath(self.directory), "s")

    def listen(self, path=None, **kwargs):
        """Listen and stop at the end of the test."""
        port = listen_unix(self.reactor, "--flag", path or self.path, ServerFactory(), **kwargs)
        self.addCleanup(self.stop, port)
        return port

    def stop(self, port):
        """Stop listening, and run the reactor as far as that needs."""
        if port.connected:
            port.stopListening()
            self.reactor.advance(0)

    def assert_cannot_listen(self, path, words):
        """Check that listening fails with one line that has the flag, the path and ``words``."""
        error = self.assertRaises(
            CannotListen, listen_unix, self.reactor, "--flag", path, ServerFactory()
        )
        self.assertTrue(error.code.startswith("--flag: "), error.code)
        self.assertIn(words, error.code)
        self.assertNotIn("\n", error.code)

    def test_the_file(self):
        """Owner and group may connect, and nobody else, whatever the umask is."""
        umask = os.umask(0)
        self.addCleanup(os.umask, umask)
        self.listen()
        status = os.stat(self.path)
        self.assertTrue(stat.S_ISSOCK(status.st_mode))
        self.assertEqual(stat.S_IMODE(status.st_mode), 0o660)
        self.assertEqual(os.umask(0), 0)

    def test_until_the_file_has_its_mode(self):
        """Until then nobody can connect, and other threads make files with the process's umask."""
        chmod = os.chmod

        def check_and_chmod(path, mode):
            with socket.socket(socket.AF_UNIX) as caller:
                self.assertRaises(ConnectionRefusedError, caller.connect, path)
            os.mkdir(self.directory + "/other")
            chmod(path, mode)

        self.addCleanup(os.umask, os.umask(0))
        self.patch(os, "chmod", check_and_chmod)
        self.listen()
        self.assertEqual(stat.S_IMODE(os.stat(self.directory + "/other").st_mode), 0o777)

    def test_another_mode(self):
        """The file's mode can be chosen."""
        self.listen(mode=0o600)
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)

    def test_the_file_is_removed_at_the_end(self):
        """The file is removed at once, so that it is gone even if the reactor never runs."""
        port = self.listen()
        port.stopListening()
        self.assertFalse(os.path.lexists(self.path))
        self.reactor.advance(0)

    def test_a_removed_file(self):
        """Stopping succeeds although somebody has removed the file."""
        port = self.listen()
        os.unlink(self.path)
        stopped = port.stopListening()
        self.reactor.advance(0)
        self.successResultOf(stopped)

    def test_a_replaced_file(self):
        """A file that a newer process has created at the path is kept."""
        port = self.listen()
        os.unlink(self.path)
        newer = socket.socket(socket.AF_UNIX)
        self.addCleanup(newer.close)
        newer.bind(self.path)
        self.stop(port)
        self.assertTrue(os.path.lexists(self.path))

    def test_a_stale_socket_is_replaced(self):
        """The socket of a killed process is replaced."""
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(self.path)
            killed.listen()
        self.listen()
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(self.path)

    def test_a_socket_in_use_is_not(self):
        """A socket in use is left alone, whether its queue has room or is full."""
        with socket.socket(socket.AF_UNIX) as owner:
            owner.bind(self.path)
            owner.listen(0)
            # The first attempt fills the queue, and the second finds it full.
            self.assert_cannot_listen(self.path, "another process listens")
            self.assert_cannot_listen(self.path, "another process listens")
        self.assertTrue(os.path.lexists(self.path))

    def test_other_files_are_left_alone(self):
        """A plain file or a symbolic link at the path is left alone."""
        with open(self.path, "w") as file:
            file.write("precious")
        self.assert_cannot_listen(self.path, "is not a socket")
        os.symlink("s", self.path + "-link")
        self.assert_cannot_listen(self.path + "-link", "is not a socket")
        with open(self.path) as file:
            self.assertEqual(file.read(), "precious")

    def test_a_directory_that_does_not_exist(self):
        """The error names the missing directory."""
        self.assert_cannot_listen("nowhere/at/all/s", "directory nowhere/at/all does not exist")

    def test_a_path_that_is_too_long(self):
        """A path of more than 107 bytes, the kernel's limit, is rejected."""
        self.assert_cannot_listen("a" * 108, "longer than 107 bytes")
        self.listen("a" * 107)

    def test_a_directory_without_permission(self):
        """The error contains the system's message."""
        self.patch(os, "lstat", self.deny)
        self.assert_cannot_listen(self.path, "Permission denied")

    def deny(self, path):
        """Deny access."""
        raise PermissionError(errno.EACCES, "Permission denied")
