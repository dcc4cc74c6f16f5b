"""Selection of the process that a command queries."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tempfile
import threading
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import discovery
from yurttunnel.cli.client import CommandFailed, NoResponse, Process
from yurttunnel.ops.admin_socket import SOCKET

TABLE = "Num       RefCount Protocol Flags    Type St Inode Path\n"
LINE = "0000000000000000: 00000002 00000000 00010000 0001 01 12345 {}\n"


class RunningTests(SynchronousTestCase):
    """Sockets in the kernel's table."""

    def setUp(self) -> None:
        """Make a directory with a socket."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name, "with blanks")
        self.directory.mkdir()
        self.path = self.directory / SOCKET
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.path))

    def running_processes(self, *paths: object) -> list[Path]:
        """Return the processes that are found for a table with ``paths``."""
        table = self.directory / "unix"
        table.write_text(TABLE + "".join(LINE.format(path) for path in paths) + LINE.format("\n"))
        return [each.path for each in discovery.running_processes(table)]

    def test_found(self) -> None:
        """A socket is found once, by its name; other sockets are ignored."""
        other = self.directory / "docker.sock"
        self.assertEqual(
            [self.path], self.running_processes(self.path, self.path, other, "@abstract")
        )

    def test_not_ours(self) -> None:
        """Sockets of other users, missing sockets and other files are ignored."""
        file = self.directory / "d" / SOCKET
        file.parent.mkdir()
        file.touch()
        self.assertEqual([], self.running_processes(file, self.directory / "gone" / SOCKET))
        self.patch(os, "geteuid", lambda: os.getuid() + 4711)
        expected = [self.path] if os.getuid() == 0 else []
        self.assertEqual(expected, self.running_processes(self.path))

    def test_no_table(self) -> None:
        """Without the kernel's table no process is found."""
        self.assertEqual([], discovery.running_processes(self.directory / "missing"))


class AnswerTests(SynchronousTestCase):
    """Responses of a process."""

    def refused(self, answer: bytes, **parameters: str) -> str:
        """Return the error for a response; the request is recorded."""
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            path = Path(directory, SOCKET)
            listening.bind(str(path))
            listening.listen()

            def serve() -> None:
                connection, _ = listening.accept()
                with connection:
                    self.request = connection.recv(65536)
                    connection.sendall(answer)

            serving = threading.Thread(target=serve)
            serving.start()
            try:
                post = Process(path, 10).post
                return str(self.assertRaises(CommandFailed, post, "/v1/revocations", **parameters))
            finally:
                serving.join()

    def test_errors(self) -> None:
        """The error has the response's text without control characters, or else its status."""
        head = b"HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n"
        self.assertEqual("it \\x1b is there", self.refused(head + b"it \x1b is there\n"))
        self.assertRegex(self.refused(head), f"{SOCKET}: it responds with status 409$")

    def test_bytes_of_all_kinds(self) -> None:
        """An argument that is not UTF-8 is sent unchanged, and the process rejects it."""
        word = os.fsdecode(b"edge-\xff")
        self.assertEqual("no", self.refused(b"HTTP/1.0 400 Bad\r\n\r\nno\n", node=word))
        self.assertIn(b"POST /v1/revocations?node=edge-%FF HTTP/1.1\r\n", self.request)


class UnusableSocketTests(SynchronousTestCase):
    """Processes that cannot be queried."""

    def test_in_a_removed_directory(self) -> None:
        """In a removed working directory relative paths are rejected and absolute ones accepted."""
        self.addCleanup(os.chdir, os.getcwd())
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
        error = self.assertRaises(CommandFailed, discovery.process_in, Path("state"))
        self.assertIn("state is below the working directory, which was removed", str(error))
        self.assertEqual(Path("/state", SOCKET), discovery.process_in(Path("/state")).path)

    def test_a_socket_instead_of_its_directory(self) -> None:
        """The path of a socket in place of its directory is reported with the path to give."""
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            path = Path(directory, SOCKET)
            listening.bind(str(path))
            error = self.assertRaises(CommandFailed, Process(path / SOCKET).get, "/v1/process")
        self.assertEqual(f"{path} is not a directory: name the one that has {SOCKET}", str(error))

    def test_query_for_the_pid(self) -> None:
        """A query for the process id reports the same errors as one for a page."""
        with tempfile.TemporaryDirectory() as directory:
            for path in (Path(directory, SOCKET), Path(directory, "a" * 100, SOCKET)):
                process = Process(path)
                error = self.assertRaises(CommandFailed, process.get, "/v1/process")
                self.assertEqual(str(error), str(self.assertRaises(CommandFailed, process.pid)))


class HangingProcessTests(SynchronousTestCase):
    """A process that listens but hangs."""

    def setUp(self) -> None:
        """Listen with a backlog of one connection."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.path = self.directory / SOCKET
        listening = socket.socket(socket.AF_UNIX)
        self.addCleanup(listening.close)
        listening.bind(str(self.path))
        listening.listen(0)
        self.process = Process(self.path, 0.1)

    def test_no_answer(self) -> None:
        """A process that does not respond is reported as running."""
        error = self.assertRaises(NoResponse, self.process.get, "/v1/process")
        self.assertEqual(f"{self.path}: it runs, but did not respond within 0.1 s", str(error))

    def test_no_room(self) -> None:
        """A process whose backlog is full is reported as running, without waiting."""
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(self.path))
            for query in (self.process.pid, lambda: self.process.get("/v1/process")):
                error = self.assertRaises(NoResponse, query)
                self.assertEqual(
                    f"{self.path}: it runs, but does not take the connections that wait",
                    str(error),
                )

    def test_the_pid(self) -> None:
        """The kernel returns the process id although the process hangs."""
        self.assertEqual(os.getpid(), self.process.pid())

    def test_error_suggests_state_dir(self) -> None:
        """The error asks for --state-dir and does not suggest starting a second process."""
        error = self.assertRaises(
            CommandFailed, discovery.select_process, None, "server", [self.process]
        )
        self.assertEqual(
            f"what runs in {self.directory} does not respond: if that is the server, name it with"
            " --state-dir",
            str(error),
        )


class SelectionTests(SynchronousTestCase):
    """Selection among several processes."""

    def setUp(self) -> None:
        """Derive the program of a process from its directory."""
        self.patch(discovery, "program_of", self.program_of)

    def program_of(self, process: Process) -> str:
        """Return the program, unless the process hangs."""
        name = process.path.parent.name
        if name == "silent":
            raise NoResponse(f"{process.path}: it runs")
        return name

    def select_process(self, *paths: str, state_dir: str | None = None) -> str:
        """Return the path of the selected server."""
        processes = [Process(Path(path)) for path in paths]
        named = None if state_dir is None else Path(state_dir)
        return str(discovery.select_process(named, "server", processes).path)

    def test_only_server(self) -> None:
        """The only server is selected, whatever else runs; --state-dir takes precedence."""
        self.assertEqual("/1/server/s", self.select_process("/1/server/s", "/1/agent/s"))
        self.assertEqual(f"/x/{SOCKET}", self.select_process("/1/server/s", state_dir="/x"))

    def test_with_a_hanging_process(self) -> None:
        """A process that does not respond is reported beside the server, or as a candidate."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual("/1/server/s", self.select_process("/2/silent/s", "/1/server/s"))
        self.assertEqual("skipped: /2/silent/s: it runs\n", errors.getvalue())
        with self.assertRaisesRegex(CommandFailed, "^what runs in /2/silent, /3/silent does not"):
            self.select_process("/1/agent/s", "/2/silent/s", "/3/silent/s")

    def test_none_or_several(self) -> None:
        """Without a server, and with several, the error says how to select one."""
        sentence = (
            r"^no server of this user runs on this machine: start one \(yurttunnel server --help"
            r" shows how\), name its directory with --state-dir, or run this as its user or root$"
        )
        with self.assertRaisesRegex(CommandFailed, sentence):
            self.select_process("/1/agent/s")
        with self.assertRaisesRegex(CommandFailed, "choose one .*: /1/server, /2/server$"):
            self.select_process("/1/server/s", "/2/server/s")
