"""``yurttunnel config check``."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli.commands import all_commands


class ConfigCheckTests(SynchronousTestCase):
    """The command reports for a file what a start would report."""

    def setUp(self):
        """Choose a path."""
        self.path = Path(self.mktemp())

    def check(self, text, *flags):
        """Check a file with the content ``text``; return stdout, stderr and the exit status."""
        self.path.write_text(text)
        output, errors = io.StringIO(), io.StringIO()
        self.patch(sys, "stdout", output)
        self.patch(sys, "stderr", errors)
        command, arguments = all_commands().find(["config", "check", str(self.path), *flags])
        ended = self.assertRaises(SystemExit, command.run, arguments)
        texts = [each.getvalue().replace(str(self.path), "FILE") for each in (output, errors)]
        return (*texts, ended.code)

    def test_a_file_in_order(self):
        """A valid file is reported with the program that has all its keys."""
        server = 'standalone = true\nstate-dir = "S"\nforward = ["9000=edge-1/a:80"]'
        agent = 'node-name = "n"\nnode-ip = "192.0.2.1"\nallow-destination = ["a:80"]'
        hub = 'node-name = "n"\nserver-addr = "https://192.0.2.1"\nmax-watches = 5'
        proxy = 'master = "http://127.0.0.1:10261"\nudp-timeout = "5s"'
        for name, text in (("server", server), ("agent", agent), ("hub", hub), ("proxy", proxy)):
            self.assertEqual((f"FILE is valid for yurttunnel {name}\n", "", 0), self.check(text))

    def test_no_name(self):
        """An empty path is rejected, and is not the current directory."""
        errors = io.StringIO()
        self.patch(sys, "stderr", errors)
        command, arguments = all_commands().find(["config", "check", ""])
        ended = self.assertRaises(SystemExit, command.run, arguments)
        expected = "yurttunnel config check: it is empty: write a path\n"
        self.assertEqual((expected, 64), (errors.getvalue(), ended.code))

    def test_a_pipe(self):
        """A pipe is rejected, since it can be read only once."""
        os.mkfifo(self.path)
        errors = io.StringIO()
        self.patch(sys, "stderr", errors)
        command, arguments = all_commands().find(["config", "check", str(self.path)])
        ended = self.assertRaises(SystemExit, command.run, arguments)
        self.assertIn("is a pipe, which can be read only once", errors.getvalue())
        self.assertEqual(1, ended.code)

    def test_inaccessible_path(self):
        """A path that cannot be examined is reported with the error."""
        errors = io.StringIO()
        self.patch(sys, "stderr", errors)
        command, arguments = all_commands().find(["config", "check", "a" * 300])
        ended = self.assertRaises(SystemExit, command.run, arguments)
        self.assertIn("it cannot be read: File name too long", errors.getvalue())
        self.assertEqual(64, ended.code)

    def test_nothing(self):
        """A file with only comments is valid; with --program it is checked for that program."""
        text = "# v = 2\n"
        self.assertEqual(("FILE is valid, but sets nothing\n", "", 0), self.check(text))
        output, _, status = self.check(text, "--program=agent")
        self.assertEqual(0, status)
        self.assertIn("FILE is valid for yurttunnel agent\n", output)

    def test_missing_required_flag(self):
        """A required flag that is missing from the file may be on the command line."""
        output, errors, status = self.check("v = 2", "--program=agent")
        self.assertEqual(("", 0), (errors, status))
        self.assertIn("--node-name is missing", output)

    def test_errors(self):
        """An error is one line with the file and the key."""
        for text, expected in {
            'forwards = ["a"]\nstandalone = true': (
                "FILE: forwards: unknown key: did you mean forward?"
            ),
            "forward = 1": 'FILE: forward: write an array of texts, as forward = ["..."],',
            'forward = ["a"]': "FILE: forward: 'a' is not a forward: write LISTEN=NODE/HOST:PORT",
            "forward = ": "FILE: it is not TOML: ",
            "\n": "FILE: it is empty, perhaps because it is being written or the disk was full;",
            'allow-connect = ["user:1=*/*:*"]': "FILE: --allow-connect has no effect without",
            'state-dir = "S"\nforward = []': "FILE: --state-dir is for --standalone: add that, or",
            'standalone = true\nstate-dir = "~/S"': (
                "FILE: state-dir: '~/S': nothing replaces the ~ here: write the whole path"
            ),
            # Every value is checked, even if a required one is missing.
            'node-ip = "x"\nallow-destination = []': "FILE: node-ip: 'x' is not an IP address",
        }.items():
            output, errors, status = self.check(text)
            self.assertEqual(("", 64), (output, status))
            self.assertTrue(errors.startswith(f"yurttunnel config check: {expected}"), errors)
            self.assertEqual(1, errors.count("\n"))

    def test_missing_file(self):
        """A missing file is reported."""
        self.path.write_text("")
        command, arguments = all_commands().find(["config", "check", f"{self.path}-"])
        errors = io.StringIO()
        self.patch(sys, "stderr", errors)
        self.assertRaises(SystemExit, command.run, arguments)
        self.assertIn("it cannot be read: No such file or directory", errors.getvalue())
