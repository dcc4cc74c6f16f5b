"""The help: the common flags first, in groups, with examples that can be copied."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.deploy.reference import COMMANDS
from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group, Switch
from yurttunnel.ops.help import Example, Help
from yurttunnel.ops.options import CommandOptions

_HELP = Help(
    "yurttunnel thing",
    "It does a thing, and does it well.",
    (Example("To do it", "--state-dir DIR"), Example("To do nothing")),
    (
        Flag("state-dir", Group.BASICS, flags.path, "Where it keeps things, and for how long."),
        Switch("cluster", Group.CLUSTER, "In a cluster."),
        Flag("drain", Group.LIMITS, flags.duration, "How long it drains.", default="30"),
        Flag("log", Group.OPERATION, str, "What it tells."),
    ),
    note="Of old there were others.",
)


class HelpTests(SynchronousTestCase):
    """The content and layout of the help."""

    def test_the_usual(self) -> None:
        """The short help has usage, purpose, examples, basic and cluster flags, and --help-all."""
        self.assertEqual(
            """Usage: yurttunnel thing [options]

It does a thing, and does it well.

Examples:
  To do it:
      yurttunnel thing --state-dir DIR
  To do nothing:
      yurttunnel thing

Basics:
      --state-dir=
          Where it keeps things, and for
          how long.

In a cluster:
      --cluster
          In a cluster.

Of every command:
      --version
      -h, --help
      --help-all
          The same with 2 flags more:
          limits, operation.
""",
            _HELP.short(40),
        )

    def test_everything(self) -> None:
        """The full help has all groups in their order and the closing notes."""
        text = _HELP.full(80)
        heads = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
        self.assertEqual(
            ["Examples:", "Basics:", "In a cluster:", "Limits:", "Operation:", "Of every command:"],
            heads,
        )
        self.assertIn("How long it drains. [default: 30]", text)
        self.assertNotIn("--help-all", text)
        self.assertTrue(text.endswith("\n\nOf old there were others.\n"))
        self.assertNotIn("Of old", _HELP.short(80))

    def test_width_of_the_terminal(self) -> None:
        """Lines fit the terminal's width, except examples, since they are copied."""
        self.patch(os, "environ", {**os.environ, "COLUMNS": "72"})
        for options in COMMANDS.values():
            help = options({}).help()
            copied = {f"      {each.command(help.invocation)}" for each in help.examples}
            lines = set(help.full().splitlines()) - copied
            self.assertLessEqual(max(map(len, lines)), 72)

    def test_the_usual_is_short(self) -> None:
        """The short help of each command fits on two screens."""
        for name, options in COMMANDS.items():
            self.assertLess(len(options({}).help().short(100).splitlines()), 100, name)

    def test_nobody_needs_twist(self) -> None:
        """The help of no command mentions twist."""
        for name, options in COMMANDS.items():
            self.assertNotRegex(options({}).help().full(), r"\btwist\b", name)


class ExampleTests(SynchronousTestCase):
    """Each example is a valid command line."""

    def test_each_command_has_some(self) -> None:
        """Each command has two or three examples."""
        for name, options in COMMANDS.items():
            self.assertIn(len(options({}).examples), (2, 3), name)

    def test_examples_are_valid(self) -> None:
        """Examples can be parsed without files or services of the machine."""
        for options in COMMANDS.values():
            for example in options({}).examples:
                self.parsed(options, example)

    def parsed(self, options: type[CommandOptions[Any]], example: Example) -> None:
        """Parse an example as in a pod of a cluster."""
        environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        made = options(environment)
        # A file of the pod, which this machine does not have.
        if hasattr(made, "service_account_token"):
            made.service_account_token = Path(__file__)
        # A placeholder that readers fill in.
        arguments = example.arguments.replace("HASH", 64 * "0")
        made.parseOptions(shlex.split(arguments))

    def test_help_all_ends_the_process(self) -> None:
        """--help and --help-all print the help and exit with status 0."""
        for flag, shown in (
            ("--help", "--help-all"),
            ("-h", "--help-all"),
            ("--help-all", "Operation:"),
        ):
            for options in COMMANDS.values():
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed), self.assertRaises(SystemExit) as ended:
                    options({}).parseOptions([flag])
                self.assertEqual(0, ended.exception.code)
                self.assertIn(shown, printed.getvalue())
