"""The output of commands for a process's responses."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

from twisted.application.twist._twist import Twist
from twisted.trial.unittest import SynchronousTestCase

from tests.cli.test_nodes import NODE
from yurttunnel.cli import diagnose, main, nodes, output, status, tokens
from yurttunnel.cli.client import CommandFailed, NoResponse
from yurttunnel.cli.forwards import ListOptions as ForwardListOptions
from yurttunnel.cli.forwards import list_forwards
from yurttunnel.cli.nodes import RevokeOptions, revoke
from yurttunnel.cli.options import ClientOptions
from yurttunnel.cli.programs import PROGRAMS, Program
from yurttunnel.cli.status import StatusOptions
from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.command_line import STATUS
from yurttunnel.ops.diagnose import command
from yurttunnel.ops.diagnose.subject import Subject

NOW = 1_800_000_000.0

INTERRUPT_IMPORTS = """
import sys
class Interrupt:
    def find_spec(self, name, *arguments):
        if name.startswith("twisted"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""
"""Interrupts the process when it imports a module of Twisted."""


class Answering:
    """A process that serves ``pages`` and echoes posted parameters."""

    def __init__(self, **pages: object) -> None:
        self.path = Path("/state/yurttunnel.sock")
        self.pages = pages

    def get(self, page: str):
        """Return a page, or fail as if the process had ended."""
        name = page.rpartition("/")[2]
        if name not in self.pages:
            raise CommandFailed("it has just ended")
        return json.loads(json.dumps(self.pages[name]))

    def post(self, page: str, **parameters: str):
        """Return the page's name and the parameters."""
        return {"page": page, **parameters}


class Silent(Answering):
    """A process that hangs on every page that it does not have."""

    def get(self, page: str):
        """Return a page, or hang."""
        try:
            return super().get(page)
        except CommandFailed:
            raise NoResponse("/silent/yurttunnel.sock: it runs") from None


class PrintedTests(SynchronousTestCase):
    """The output of each command, with a fake process."""

    def printed(self, act, options, *arguments: str, process: Answering | None = None) -> str:
        """Return the output of a command."""
        self.patch(output, "now", lambda: datetime.datetime.fromtimestamp(NOW, datetime.UTC))
        self.patch(ClientOptions, "process", lambda options, program: process)
        options.parseOptions(arguments)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            self.status = act(options)
        return shown.getvalue()

    def test_tokens(self) -> None:
        """Tokens are listed with age, expiry, and whether they are in the file."""
        good = [
            {"id": "a", "created": timestamp(NOW - 90), "expires": "soon", "in_file": True},
            {"id": "b", "created": timestamp(NOW - 7200), "expires": "later", "in_file": False},
        ]
        process = Answering(tokens={"tokens": good})
        lines = self.printed(tokens.list_tokens, tokens.ListOptions(), process=process)
        self.assertEqual(
            ["ID  AGE    EXPIRES  FILE", "a   1m30s  soon     join-token", "b   2h     later"],
            lines.splitlines(),
        )

    def test_a_token_that_is_revoked(self) -> None:
        """Revoking a token sends only its id; JSON output is the process's response."""
        for arguments, expected in (
            (("a.secret",), "join token a is revoked\n"),
            (("a.secret", "-o", "json"), output.as_json({"page": "/v1/tokens/revoke", "id": "a"})),
        ):
            options = tokens.RevokeOptions()
            shown = self.printed(tokens.revoke, options, *arguments, process=Answering())
            self.assertEqual(expected, shown)

    def test_a_node_is_revoked_without_the_list_of_nodes(self) -> None:
        """A node is revoked although the server's list of nodes cannot be read."""
        shown = self.printed(revoke, RevokeOptions(), "edge-1", "-o", "json", process=Answering())
        self.assertEqual({"page": "/v1/revocations", "node": "edge-1"}, json.loads(shown))

    def test_forwards(self) -> None:
        """Forwards are listed with address, target and origin; without any there is a note."""
        entry = {"listen": "127.0.0.1:9", "node": "a", "target": "b:1", "connections": 2}
        process = Answering(forwards={"forwards": [{**entry, "origin": "command"}]})
        head, line = self.printed(list_forwards, ForwardListOptions(), process=process).splitlines()
        self.assertEqual(["LISTEN", "NODE", "TARGET", "CONNECTIONS", "OPENED", "BY"], head.split())
        self.assertEqual(["127.0.0.1:9", "a", "b:1", "2", "command"], line.split())
        process, errors = Answering(forwards={"forwards": []}), io.StringIO()
        with contextlib.redirect_stderr(errors):
            shown = self.printed(list_forwards, ForwardListOptions(), process=process)
        self.assertEqual(head.split(), shown.split())
        self.assertEqual(
            "no forward is open; yurttunnel forward add LISTEN=NODE/HOST:PORT opens one\n",
            errors.getvalue(),
        )

    def test_no_forward_at_a_terminal(self) -> None:
        """The note follows the headings although stdout is buffered."""
        process, terminal = Answering(forwards={"forwards": []}), io.BytesIO()
        self.patch(ClientOptions, "process", lambda options, program: process)
        gathered = io.TextIOWrapper(terminal)
        with (
            contextlib.redirect_stdout(gathered),
            contextlib.redirect_stderr(io.TextIOWrapper(terminal, write_through=True)),
        ):
            list_forwards(ForwardListOptions())
            gathered.flush()
            shown = terminal.getvalue()
        self.assertEqual([b"LISTEN", b"no"], [line.split()[0] for line in shown.splitlines()])

    def test_a_diagnosis_without_a_file(self) -> None:
        """A bundle that cannot be written is reported like other errors of commands."""
        process = SimpleNamespace(path=Path("/state/yurttunnel.sock"), pid=os.getpid)
        self.patch(ClientOptions, "process", lambda options, program: process)
        self.patch(diagnose, "own_arguments", lambda program, arguments: [])
        subject = Subject("yurttunnel-server", "127.0.0.1", 1, (), ())
        self.patch(diagnose, "_subject", lambda *arguments: subject)
        self.patch(command, "_collect", lambda subject: [])
        shown, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
            ending = self.assertRaises(SystemExit, diagnose.DIAGNOSE.run, ["-o", "/missing/x"])
        self.assertEqual(
            (
                "",
                "yurttunnel diagnose: --output: /missing/x: No such file or directory: name another"
                " file\n",
                1,
            ),
            (shown.getvalue(), errors.getvalue(), ending.code),
        )

    def test_status(self) -> None:
        """The status shows failed checks, and leaves out processes that have just ended."""
        process_info = {
            "program": "yurthub", "version": "1", "node": "edge-1", "ready": False, "pid": 7,
            "since": timestamp(NOW - 60), "status_page": "http://127.0.0.1:10267/",
            "checks": [
                {"name": "disk", "problem": "full", "required": True},
                {"name": "cloud", "problem": "away", "required": False},
                {"name": "cache", "problem": None, "required": False},
            ],
        }  # fmt: skip
        running = [Answering(), Answering(process=process_info)]
        self.patch(status, "running_processes", lambda: running)
        self.assertEqual(
            [
                "yurthub 1 of node edge-1: NOT READY",
                "  running for 1m, pid 7",
                "  directory /state",
                "  status page http://127.0.0.1:10267/",
                "  problem: disk: full",
                "  warning: cloud: away",
            ],
            self.printed(status.status, StatusOptions()).splitlines(),
        )
        self.assertEqual(1, self.status)
        running.pop()
        with self.assertRaisesRegex(CommandFailed, "no program of this user runs"):
            self.printed(status.status, StatusOptions())

    def test_status_of_a_hanging_process(self) -> None:
        """A process that hangs is reported beside the others and counts as not ready."""
        process_info = {
            "program": "yurttunnel-agent", "version": "1", "node": "edge-1", "ready": True,
            "pid": 7, "since": timestamp(NOW - 60), "status_page": "http://127.0.0.1:10266/",
            "checks": [],
        }  # fmt: skip
        answering = Answering(process=process_info, agents=[])
        for running, shown in (
            ([Silent()], []),
            ([Silent(process=process_info)], []),
            ([Silent(), answering], ["yurttunnel-agent"]),
            ([answering, Silent(), Answering()], ["yurttunnel-agent"]),
        ):
            self.patch(status, "running_processes", lambda running=running: running)
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                printed = self.printed(status.status, StatusOptions(), "-o", "json")
            self.assertEqual(shown, [each["program"] for each in json.loads(printed)])
            self.assertEqual("/silent/yurttunnel.sock: it runs\n", errors.getvalue())
            self.assertEqual(1, self.status)

    def test_help(self) -> None:
        """The first word of two-word commands has help of its own."""
        for arguments, first, ended in (
            (["token", "--help"], "Usage: yurttunnel token COMMAND [flags]", 0),
            (["help", "token"], "Usage: yurttunnel token COMMAND [flags]", 0),
            (["token", "list", "--help"], "Usage: yurttunnel token list", 0),
            ([], "Usage: yurttunnel COMMAND [flags]", STATUS),
        ):
            self.patch(sys, "argv", ["yurttunnel", *arguments])
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown), self.assertRaises(SystemExit) as ending:
                main.main()
            self.assertTrue(shown.getvalue().startswith(first), (arguments, shown.getvalue()))
            self.assertEqual(ended, ending.exception.code or 0)

    def test_no_output(self) -> None:
        """Commands work without standard output (``>&-``) and exit with the same status."""
        process = Answering(tokens={"tokens": []})
        self.patch(ClientOptions, "process", lambda options, program: process)
        self.patch(command, "_collect", lambda subject: [])
        subject = Subject("yurttunnel-server", "127.0.0.1", 1, (), ())
        self.patch(sys, "stdout", None)
        for arguments in (["token", "list"], ["man", "server"], ["token", "revoke", "a"]):
            self.patch(sys, "argv", ["yurttunnel", *arguments])
            with self.assertRaises(SystemExit) as ending:
                main.main()
            self.assertEqual(0, ending.exception.code, arguments)
        nodes._print_changed([NODE], as_json=True)
        self.assertEqual(0, command.diagnose(subject, Path(self.mktemp()), None))

    def test_interrupt(self) -> None:
        """A program that is interrupted while it starts, and a command, exit as SIGINT would."""

        def interrupt(*arguments: object) -> None:
            raise KeyboardInterrupt

        self.patch(ClientOptions, "process", interrupt)
        self.patch(Program, "options", interrupt)
        for arguments in (["token", "list"], ["server", "--standalone"]):
            self.patch(sys, "argv", ["yurttunnel", *arguments])
            with self.assertRaises(SystemExit) as ending:
                main.main()
            self.assertEqual(130, ending.exception.code, arguments)

    def test_interrupt_of_a_start(self) -> None:
        """A program that starts ends by SIGINT, where Deferreds would catch an exception, and one
        that ignores the signal continues; the reactor finds the former handler."""
        found: list[object] = []

        def note(*arguments: object) -> None:
            found.append(signal.getsignal(signal.SIGINT))

        self.patch(Program, "options", lambda program: Mock())
        self.patch(Twist, "service", note)
        self.patch(Twist, "startService", note)
        self.patch(Twist, "run", note)
        before = signal.getsignal(signal.SIGINT)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        for former, starting in (
            (signal.default_int_handler, signal.SIG_DFL),
            (signal.SIG_IGN, signal.SIG_IGN),
        ):
            signal.signal(signal.SIGINT, former)
            found.clear()
            PROGRAMS[0].run([])
            self.assertEqual([starting, starting, former], found)

    def test_interrupt_of_imports(self) -> None:
        """A command that is interrupted while it imports its modules prints nothing either."""
        for function in ("main", "complete"):
            program = f"{INTERRUPT_IMPORTS}from yurttunnel.cli.main import {function}\n{function}()"
            ended = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
            )
            self.assertEqual((130, b"", b""), (ended.returncode, ended.stdout, ended.stderr))

    def test_no_page(self) -> None:
        """An empty name of a manual page is an error of one line."""
        self.patch(sys, "argv", ["yurttunnel", "man", ""])
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as ending:
            main.main()
        self.assertTrue(errors.getvalue().startswith("yurttunnel man: there is no command ''"))
        self.assertEqual((STATUS, 1), (ending.exception.code, errors.getvalue().count("\n")))
