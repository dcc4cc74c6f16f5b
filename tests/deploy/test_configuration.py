"""The example files for ``--config``, and the page about them."""

from __future__ import annotations

import re

from twisted.trial import unittest

from tests.deploy.rendering import REPOSITORY
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.agent.process import LIVE_FLAGS as LIVE_OF_AGENT
from yurttunnel.cli.config import check_file
from yurttunnel.hub.options import Options as HubOptions
from yurttunnel.hub.process import LIVE_FLAGS as LIVE_OF_HUB
from yurttunnel.ops.configuration.file import read_file
from yurttunnel.ops.flag_table import Repeated, Switch
from yurttunnel.ops.options import VERBOSITY
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.proxy.process import LIVE_FLAGS as LIVE_OF_PROXY
from yurttunnel.server.options import Options as ServerOptions
from yurttunnel.server.process import LIVE_FLAGS as LIVE_OF_SERVER

SINGLE_START_FLAGS = {
    "config",
    "diagnose",
    "output",
    "revoke-node",
    "cleanup-iptables",
    "cleanup",
    "dump-cache",
}
"""Flags for a single start, which belong on the command line."""

UNSUITABLE = {"join-token"}
"""Flags that do not belong in a file."""

_LEFT_OUT = re.compile(r"(?m)^# (?=[a-z-]+ = )")

PROGRAMS = {
    "server": (ServerOptions, LIVE_OF_SERVER),
    "agent": (AgentOptions, LIVE_OF_AGENT),
    "hub": (HubOptions, LIVE_OF_HUB),
    "proxy": (ProxyOptions, LIVE_OF_PROXY),
}


class ExampleTests(unittest.SynchronousTestCase):
    """Each file in deploy/config is valid for its program."""

    def files(self):
        """Yield the options, the live flags and the example file of each program."""
        for name, (options, live) in PROGRAMS.items():
            yield options, live, REPOSITORY / "deploy" / "config" / f"{name}.toml"

    def test_they_are_in_order_as_they_are(self):
        """``yurttunnel config check`` accepts the files."""
        for options, _, path in self.files():
            self.assertIsNone(check_file(options, path))

    def test_they_have_every_key(self):
        """The files have every key, and each key that is commented out is valid."""
        for options, _, path in self.files():
            all_flags_file = self.mktemp()
            with open(all_flags_file, "w") as file:
                file.write(_LEFT_OUT.sub("", path.read_text()))
            table = {entry.name: entry for entry in options.table}
            values = read_file(type(path)(all_flags_file), options.table)
            self.assertEqual(
                table.keys() - SINGLE_START_FLAGS - UNSUITABLE, values.keys() - UNSUITABLE
            )
            for name, value in values.items():
                entry = table[name]
                if not isinstance(entry, Switch):
                    for text in value.texts:
                        entry.parse(text)
                if not isinstance(entry, Repeated):
                    self.assertEqual(1, len(value.texts), name)

    def test_live_keys_are_marked(self):
        """Exactly the live keys are marked as live."""
        for options, live, path in self.files():
            names = {flag.name for flag in (*live, VERBOSITY)}
            marked = re.findall(r"(?m)^# Live\..*\n(?:# )?([a-z-]+) = ", path.read_text())
            self.assertEqual(names, set(marked))
            self.assertTrue(names <= {entry.name for entry in options.table})

    def test_the_page_lists_live_flags_of_each_program(self):
        """Each row of docs/configuration.md names exactly the programs that reload the flag."""
        page = (REPOSITORY / "docs" / "configuration.md").read_text()
        documented = {
            (name, program)
            for flags, programs in re.findall(
                r"(?m)^\| ((?:`--[a-z-]+`,? ?)+)\| ([a-z, ]+) \|", page
            )
            for name in re.findall(r"`--([a-z-]+)`", flags)
            for program in (PROGRAMS if programs.strip() == "all" else programs.split(", "))
        }
        followed = {
            (flag.name, program)
            for program, (_, live) in PROGRAMS.items()
            for flag in (*live, VERBOSITY)
        }
        self.assertEqual(followed, documented)
