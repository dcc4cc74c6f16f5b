"""Where ``yurttunnel diagnose`` finds the files of a process."""

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
from yurttunnel.ops.admin_socket import SOCKET
from yurttunnel.ops.diagnose import command
from yurttunnel.ops.diagnose.files import files_part
from yurttunnel.ops.diagnose.subject import Subject

WAITING = [sys.executable, "-S", "-c", "input(chr(10))"]
"""A process that reports its start and waits for the end of its input."""

HUB = ("--node-name=a", "--server-addr=https://a:1", "--bootstrap-mode=kubeletcertificate")

AGENT = ("--tunnelserver-addr=a:1", "--node-name=a", "--node-ip=10.0.0.1")

SECRET = "-----BEGIN PRIVATE KEY-----"


class DiagnosingTestCase(SynchronousTestCase):
    """Diagnosis of a process whose working directory differs from the command's."""

    def setUp(self) -> None:
        """Make both directories with the same subdirectories, and capture the subject."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.process_directory, self.working_directory = (
            Path(directory.name, name) for name in ("there", "here")
        )
        for path in (self.process_directory, self.working_directory):
            Path(path, "state", "pki").mkdir(parents=True)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.working_directory)
        self.patch(command, "diagnose", self.written)

    def written(self, subject: Subject, output: Path | None, screen: TextIO) -> int:
        """Record the subject, the findings about its files, and the working directory."""
        self.subject, self.from_where = subject, Path.cwd()
        now = datetime.datetime.now(datetime.UTC)
        self.findings = files_part(subject.directories, subject.files, now).findings
        return 0

    def start(self, program: str, *arguments: str) -> None:
        """Start a process with a command line; discovery finds it in the directory ``state``."""
        self.program = program
        child = subprocess.Popen(
            [*WAITING, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.process_directory,
            env={"HOME": "/home/u"},
        )
        self.addCleanup(child.communicate, b"\n")
        # The command line is readable once the process has started.
        child.stdout.readline()
        found = SimpleNamespace(
            path=self.process_directory / "state" / SOCKET, pid=lambda: child.pid
        )
        self.patch(ClientOptions, "process", lambda options, program: found)

    def diagnose(self, *flags: str) -> None:
        """Run the command."""
        options = diagnose.DiagnoseOptions({})
        options.parseOptions(["--program", self.program, *flags])
        self.assertEqual(0, diagnose.diagnose(options))


class DirectoryTests(DiagnosingTestCase):
    """The process may have another working directory and another user than the command."""

    def test_relative_paths(self) -> None:
        """Relative paths are resolved in the process's working directory."""
        key = self.process_directory / "state" / "pki" / "node.key"
        key.write_text(SECRET)
        key.chmod(0o644)
        self.start("hub", *HUB, "--root-dir=state", "--disk-cache-path=cache")
        for flags in ((), ("-o", "bundle.tar.gz")):
            self.diagnose(*flags)
            self.assertEqual(
                (key.parent, self.process_directory / "cache"), self.subject.directories
            )
            self.assertEqual(
                (f"{key} holds a secret and is open to other users: chmod 0600 it.",),
                self.findings,
            )
            self.assertEqual(self.working_directory, self.from_where)

    def test_files(self) -> None:
        """Paths of files are resolved in the same way; absolute paths are unchanged."""
        for flag_path, expected in (
            ("ca.crt", self.process_directory / "ca.crt"),
            ("/ca.crt", Path("/ca.crt")),
        ):
            self.start("server", "--standalone", "--state-dir=state", f"--kubelet-ca={flag_path}")
            self.diagnose()
            self.assertEqual((expected,), self.subject.files)
            self.assertEqual((self.process_directory / "state",), self.subject.directories)

    def test_a_removed_directory(self) -> None:
        """A process whose working directory was removed is diagnosed without relative paths."""
        self.process_directory = self.process_directory / "gone"
        self.process_directory.mkdir()
        self.start("hub", *HUB, "--root-dir=state", "--disk-cache-path=/cache")
        self.process_directory.rmdir()
        self.diagnose()
        self.assertEqual(Path("/cache"), self.subject.directories[1])

    def test_without_a_working_directory(self) -> None:
        """The command works in a removed working directory, and stays in it."""
        self.start("hub", *HUB, "--root-dir=state", "--disk-cache-path=/cache")
        removed = self.working_directory / "gone"
        removed.mkdir()
        os.chdir(removed)
        removed.rmdir()
        self.patch(command, "diagnose", lambda subject, output, screen: 0)
        self.diagnose("-o", "/bundle.tar.gz")
        self.assertRaises(FileNotFoundError, Path.cwd)

    def test_usual_directories(self) -> None:
        """Root diagnoses the default directories of the process's user, not its own."""
        self.patch(os, "geteuid", lambda: 0)
        for program, flags in (("server", ()), ("agent", AGENT)):
            self.start(program, "--standalone", *flags)
            self.diagnose()
            self.assertEqual((self.process_directory / "state",), self.subject.directories)


class ProcessAnswersTests(DiagnosingTestCase):
    """The process's own answers take precedence, since --config files may have changed."""

    def setUp(self) -> None:
        """Make the process answer."""
        super().setUp()
        self.process_page = {"program": "yurttunnel-agent", "status_page": "http://[::1]:4711/"}
        self.patch(Process, "get", lambda process, page: self.process_page)
        self.config = self.process_directory / "agent.toml"
        self.config.write_text("standalone = true\nmeta-port = 10300\n")

    def test_a_port_that_requires_a_restart(self) -> None:
        """The meta port comes from the process, not from the changed file."""
        self.start("agent", *AGENT, "--config=agent.toml")
        self.diagnose()
        self.assertEqual(("::1", 4711), (self.subject.meta_host, self.subject.meta_port))

    def test_a_broken_file(self) -> None:
        """With an invalid file everything but the flags is diagnosed, and the error is reported."""
        self.start("agent", *AGENT, "--config=agent.toml")
        for break_it in (lambda: self.config.write_text("v = []"), self.config.unlink):
            break_it()
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                self.diagnose()
            self.assertRegex(errors.getvalue(), "^the flags of the process are not .*agent.toml")
            self.assertEqual("yurttunnel-agent", self.subject.program)
            self.assertEqual(("::1", 4711), (self.subject.meta_host, self.subject.meta_port))
            self.assertEqual((self.process_directory / "state",), self.subject.directories)
            self.assertEqual(("--join-token",), self.subject.secret_flags)

    def test_a_broken_file_of_a_hanging_process(self) -> None:
        """An invalid file is an error if the process hangs, since its meta port is unknown."""

        def hang(process: Process, page: str) -> None:
            raise NoResponse("it runs")

        self.patch(Process, "get", hang)
        self.config.write_text("v = []")
        self.start("agent", *AGENT, "--config=agent.toml")
        with self.assertRaisesRegex(CommandFailed, "^the flags of the process are not understood"):
            self.diagnose()
