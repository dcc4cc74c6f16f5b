"""Where ``yurttunnel diagnose`` looks for the files of the process."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import diagnose
from yurttunnel.cli.client import CommandFailed, NoResponse, Process
from yurttunnel.cli.options import ClientOptions
from yurttunnel.ops.admin.service import SOCKET
from yurttunnel.ops.diagnose import command
from yurttunnel.ops.diagnose.files import files_part
from yurttunnel.ops.diagnose.subject import Subject

WAITING = [sys.executable, "-S", "-c", "input(chr(10))"]
"""A process that says that it runs, and does nothing until its input ends."""

HUB = ("--node-name=a", "--server-addr=https://a:1", "--bootstrap-mode=kubeletcertificate")

AGENT = ("--tunnelserver-addr=a:1", "--node-name=a", "--node-ip=10.0.0.1")

SECRET = "-----BEGIN PRIVATE KEY-----"


class DiagnosingTestCase(SynchronousTestCase):
    """With a process of another working directory than the command's."""

    def setUp(self) -> None:
        """Make both directories, with one of the same name in each, and keep the subject."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.there, self.here = (Path(directory.name, name) for name in ("there", "here"))
        for path in (self.there, self.here):
            Path(path, "state", "pki").mkdir(parents=True)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.here)
        self.patch(command, "diagnose", self.written)

    def written(self, subject: Subject, output: Path | None, screen: TextIO) -> int:
        """Note what is diagnosed, what is found wrong with its files, and from where."""
        self.subject, self.from_where = subject, Path.cwd()
        now = datetime.datetime.now(datetime.UTC)
        self.findings = files_part(subject.directories, subject.files, now).findings
        return 0

    def start(self, program: str, *arguments: str) -> None:
        """Start a process with this command line, which is found in the directory ``state``."""
        self.program = program
        child = subprocess.Popen(
            [*WAITING, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.there,
            env={"HOME": "/home/u"},
        )
        self.addCleanup(child.communicate, b"\n")
        # Its command line can be read when it has begun.
        child.stdout.readline()
        found = SimpleNamespace(path=self.there / "state" / SOCKET, pid=lambda: child.pid)
        self.patch(ClientOptions, "process", lambda options, program: found)

    def diagnose(self, *flags: str) -> None:
        """Diagnose it."""
        options = diagnose.DiagnoseOptions({})
        options.parseOptions(["--program", self.program, *flags])
        self.assertEqual(0, diagnose.diagnose(options))


class DirectoryTests(DiagnosingTestCase):
    """A process of another working directory than the command's, and perhaps another user."""

    def test_relative_paths(self) -> None:
        """They are relative to where the process was started, wherever the bundle goes."""
        key = self.there / "state" / "pki" / "node.key"
        key.write_text(SECRET)
        key.chmod(0o644)
        self.start("hub", *HUB, "--root-dir=state", "--disk-cache-path=cache")
        for flags in ((), ("-o", "bundle.tar.gz")):
            self.diagnose(*flags)
            self.assertEqual((key.parent, self.there / "cache"), self.subject.directories)
            self.assertEqual(
                (f"{key} holds a secret and is open to other users: chmod 0600 it.",),
                self.findings,
            )
            self.assertEqual(self.here, self.from_where)

    def test_files(self) -> None:
        """Single files are meant likewise; an absolute path stays as it is."""
        for given, meant in ("ca.crt", self.there / "ca.crt"), ("/ca.crt", Path("/ca.crt")):
            self.start("server", "--standalone", "--state-dir=state", f"--kubelet-ca={given}")
            self.diagnose()
            self.assertEqual((meant,), self.subject.files)
            self.assertEqual((self.there / "state",), self.subject.directories)

    def test_a_directory_that_is_gone(self) -> None:
        """Of a process whose working directory was removed all else is diagnosed."""
        self.there = self.there / "gone"
        self.there.mkdir()
        self.start("hub", *HUB, "--root-dir=state", "--disk-cache-path=/cache")
        self.there.rmdir()
        self.diagnose()
        self.assertEqual(Path("/cache"), self.subject.directories[1])

    def test_without_a_working_directory(self) -> None:
        """Who is in a directory that was removed can diagnose, and is back there."""
        self.start("hub", *HUB, "--root-dir=state", "--disk-cache-path=/cache")
        gone = self.here / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
        self.patch(command, "diagnose", lambda subject, output, screen: 0)
        self.diagnose("-o", "/bundle.tar.gz")
        self.assertRaises(FileNotFoundError, Path.cwd)

    def test_usual_directories(self) -> None:
        """Root sees those of the user whose process it is, not its own usual ones."""
        self.patch(os, "geteuid", lambda: 0)
        for program, flags in (("server", ()), ("agent", AGENT)):
            self.start(program, "--standalone", *flags)
            self.diagnose()
            self.assertEqual((self.there / "state",), self.subject.directories)


class ToldTests(DiagnosingTestCase):
    """What the process says of itself counts, since files of ``--config`` change."""

    def setUp(self) -> None:
        """Have it answer."""
        super().setUp()
        self.told = {"program": "yurttunnel-agent", "status_page": "http://[::1]:4711/"}
        self.patch(Process, "get", lambda process, page: self.told)
        self.config = self.there / "agent.toml"
        self.config.write_text("standalone = true\nmeta-port = 10300\n")

    def test_a_port_that_takes_a_restart(self) -> None:
        """The meta port is the one that it has, and not the one that the file says by now."""
        self.start("agent", *AGENT, "--config=agent.toml")
        self.diagnose()
        self.assertEqual(("::1", 4711), (self.subject.meta_host, self.subject.meta_port))

    def test_a_broken_file(self) -> None:
        """What can be known without flags is diagnosed, and it is told that they are not."""
        self.start("agent", *AGENT, "--config=agent.toml")
        for break_it in (lambda: self.config.write_text("v = []"), self.config.unlink):
            break_it()
            beside = io.StringIO()
            with contextlib.redirect_stderr(beside):
                self.diagnose()
            self.assertRegex(beside.getvalue(), "^the flags of the process are not .*agent.toml")
            self.assertEqual("yurttunnel-agent", self.subject.program)
            self.assertEqual(("::1", 4711), (self.subject.meta_host, self.subject.meta_port))
            self.assertEqual((self.there / "state",), self.subject.directories)
            self.assertEqual(("--join-token",), self.subject.secret_flags)

    def test_a_broken_file_of_one_that_hangs(self) -> None:
        """There it is an error: nobody says where its meta port is."""

        def hang(process: Process, page: str) -> None:
            raise NoResponse("it runs")

        self.patch(Process, "get", hang)
        self.config.write_text("v = []")
        self.start("agent", *AGENT, "--config=agent.toml")
        with self.assertRaisesRegex(CommandFailed, "^the flags of the process are not understood"):
            self.diagnose()
