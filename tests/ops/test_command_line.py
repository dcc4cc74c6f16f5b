"""Errors of the command line: one line with the flag, the fault and the fix."""

from __future__ import annotations

import io
import sys

from twisted.application.twist._options import TwistOptions
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import flags
from yurttunnel.ops.command_line import STATUS, did_you_mean, exit_on_usage_error
from yurttunnel.ops.flag_table import Flag, Group, Switch
from yurttunnel.ops.options import CommandOptions


class _Options(CommandOptions[None]):
    """A command with a few flags."""

    table = (
        Flag("state-dir", Group.BASICS, flags.path, "Where it keeps things.", short="s"),
        Flag("meta-host", Group.OPERATION, flags.listening_address, "Where its pages are."),
        Flag("meta-port", Group.OPERATION, flags.port, "Their port.", default="1"),
        Switch("standalone", Group.BASICS, "Alone."),
    )

    def make_settings(self) -> None:
        """Parse a value that may be invalid."""
        self.value(self.table[2])


class ErrorMessageTests(SynchronousTestCase):
    """The error messages."""

    def message(self, *arguments: str, twist_command: str = "") -> str:
        """Return the error for a command line."""
        options = _Options({})
        if not twist_command:
            return str(self.assertRaises(UsageError, options.parseOptions, list(arguments)))
        options.parent = TwistOptions()
        options.parent.subCommand = twist_command
        self.patch(sys, "stderr", io.StringIO())
        ended = self.assertRaises(SystemExit, options.parseOptions, list(arguments))
        self.assertEqual(STATUS, ended.code)
        return sys.stderr.getvalue()

    def test_a_flag_that_does_not_exist(self) -> None:
        """An unknown flag is reported with the flags that are similar to it."""
        for line, message in {
            "--stat-dir": "--stat-dir: there is no such flag: did you mean --state-dir?",
            "--meta_port=1": "--meta_port: there is no such flag: did you mean --meta-port?",
            "--state_di": "--state_di: there is no such flag: did you mean --state-dir?",
            "-meta-port": "-meta-port: there is no such flag: did you mean --meta-port?",
            "--x": "--x: there is no such flag: --help-all shows all there are",
            "-x": "-x: there is no such flag: --help-all shows all there are",
        }.items():
            self.assertEqual(message, self.message(line))

    def test_several_similar_flags(self) -> None:
        """Similar flags are listed by similarity; flags that are much less similar are left out."""
        self.assertEqual(
            "--meta-pst: there is no such flag: did you mean --meta-port or --meta-host?",
            self.message("--meta-pst=1"),
        )
        self.assertEqual(
            "--state-dr: there is no such flag: did you mean --state-dir?",
            self.message("--state-dr"),
        )
        self.assertEqual("did you mean aad, aac or aab?", did_you_mean("aa", ["aac", "aad", "aab"]))
        self.assertEqual("", did_you_mean("b", ["aab"]))

    def test_short_words(self) -> None:
        """Two common letters of three are not similar enough for a suggestion."""
        self.assertEqual("", did_you_mean("get", ["agent"]))
        self.assertEqual("did you mean hub?", did_you_mean("hb", ["hub"]))
        self.assertEqual("did you mean agent?", did_you_mean("agnt", ["agent"]))

    def test_flags_of_twist(self) -> None:
        """A flag of twist is reported with its place under twist, or else with its replacement."""
        self.assertEqual(
            "--log-level: it is a flag of twist itself: write it before the command, twist"
            " --log-level LEVEL yurttunnel-server, or give --v=4 here for debug messages\n",
            self.message("--log-level", "debug", twist_command="yurttunnel-server"),
        )
        self.assertEqual(
            "--log-level: there is no such flag: give --v=2 for each request, --v=4 for debug"
            " messages",
            self.message("--log-level=debug"),
        )
        self.assertEqual(
            "--log-file: there is no such flag: the log goes to standard error: 2> FILE puts it"
            " into a file",
            self.message("--log-file=x"),
        )

    def test_values(self) -> None:
        """Missing and superfluous values, ambiguous abbreviations and arguments are reported."""
        for line, message in {
            "--state-dir": "--state-dir: its value is missing: write --state-dir=VALUE",
            "-s": "-s: its value is missing: write -s=VALUE",
            "--standalone=yes": "--standalone: it takes no value: remove the equals sign and"
            " what follows it",
            "--meta=1": "--meta: it may be short for --meta-host or --meta-port: write it out",
            "--meta-port=x": "--meta-port: 'x' is not a port: write a number from 1 to 65535",
            "yes": "unexpected argument 'yes': it belongs to no flag",
        }.items():
            self.assertEqual(message, self.message(line))

    def test_under_twist_nothing_is_added(self) -> None:
        """Under twist the error is printed without the help that twist would add."""
        self.assertEqual(
            "--meta-port: 'x' is not a port: write a number from 1 to 65535\n",
            self.message("--meta-port=x", twist_command="yurttunnel-server"),
        )

    def test_line_breaks(self) -> None:
        """Line breaks in a quoted value do not break the error's line."""
        self.patch(sys, "stderr", io.StringIO())
        with self.assertRaises(SystemExit), exit_on_usage_error():
            raise UsageError("--flag: 'a\n  b' is bad")
        self.assertEqual("--flag: 'a b' is bad\n", sys.stderr.getvalue())


class UrlTests(SynchronousTestCase):
    """A URL in place of an address is rejected with the address that it contains."""

    def test_addresses(self) -> None:
        """All kinds of address flags reject URLs."""
        for parse in (flags.host, flags.address, flags.listening_address):
            error = self.assertRaises(ValueError, parse, "http://192.0.2.7/")
            self.assertEqual("'http://192.0.2.7/' is a URL: write 192.0.2.7", str(error))
        error = self.assertRaises(ValueError, flags.host_port, "https://a.example:10262", 1)
        self.assertEqual("'https://a.example:10262' is a URL: write a.example:10262", str(error))
        error = self.assertRaises(ValueError, flags.host_port, "unix:///run", 1)
        self.assertEqual("'unix:///run' is a URL: write HOST:PORT", str(error))
