"""The examples of files for ``--config``, and what docs say of them."""

from __future__ import annotations

import re

from twisted.trial import unittest

from tests.deploy.rendering import REPOSITORY
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.agent.process import LIVE_FLAGS as LIVE_OF_AGENT
from yurttunnel.hub.options import Options as HubOptions
from yurttunnel.hub.process import LIVE_FLAGS as LIVE_OF_HUB
from yurttunnel.ops.configuration.check import check_file
from yurttunnel.ops.configuration.file import read_file
from yurttunnel.ops.flag_table import Repeated, Switch
from yurttunnel.ops.options import VERBOSITY
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.proxy.process import LIVE_FLAGS as LIVE_OF_PROXY
from yurttunnel.server.live_settings import LIVE_FLAGS as LIVE_OF_SERVER
from yurttunnel.server.options import Options as ServerOptions

ORDERS = {
    "config",
    "diagnose",
    "output",
    "revoke-node",
    "cleanup-iptables",
    "cleanup",
    "dump-cache",
}
"""What is said for one start, on the command line."""

UNSUITABLE = {"join-token"}
"""Nobody should put it into a file."""

_LEFT_OUT = re.compile(r"(?m)^# (?=[a-z-]+ = )")

PROGRAMS = {
    "server": (ServerOptions, LIVE_OF_SERVER),
    "agent": (AgentOptions, LIVE_OF_AGENT),
    "hub": (HubOptions, LIVE_OF_HUB),
    "proxy": (ProxyOptions, LIVE_OF_PROXY),
}


class ExampleTests(unittest.SynchronousTestCase):
    """Each of deploy/config is what its program takes."""

    def files(self):
        """Yield each program, what is live there, and its example."""
        for name, (options, live) in PROGRAMS.items():
            yield options, live, REPOSITORY / "deploy" / "config" / f"{name}.toml"

    def test_they_are_in_order_as_they_are(self):
        """``yurttunnel config check`` has nothing against them."""
        for options, _, path in self.files():
            self.assertIsNone(check_file(options, path))

    def test_they_have_every_key(self):
        """What is left out there can be taken in, key by key."""
        for options, _, path in self.files():
            whole = self.mktemp()
            with open(whole, "w") as file:
                file.write(_LEFT_OUT.sub("", path.read_text()))
            table = {entry.name: entry for entry in options.table}
            given = read_file(type(path)(whole), options.table)
            self.assertEqual(table.keys() - ORDERS - UNSUITABLE, given.keys() - UNSUITABLE)
            for name, said in given.items():
                entry = table[name]
                if not isinstance(entry, Switch):
                    for text in said.texts:
                        entry.parse(text)
                if not isinstance(entry, Repeated):
                    self.assertEqual(1, len(said.texts), name)

    def test_what_is_live_is_marked(self):
        """It stands there, and nothing else does."""
        for options, live, path in self.files():
            names = {flag.name for flag in (*live, VERBOSITY)}
            marked = re.findall(r"(?m)^# Live\..*\n(?:# )?([a-z-]+) = ", path.read_text())
            self.assertEqual(names, set(marked))
            self.assertTrue(names <= {entry.name for entry in options.table})

    def test_the_page_has_what_is_live_in_each_program(self):
        """Each row of docs/configuration.md names the programs that follow it, and no other."""
        page = (REPOSITORY / "docs" / "configuration.md").read_text()
        told = {
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
        self.assertEqual(followed, told)
