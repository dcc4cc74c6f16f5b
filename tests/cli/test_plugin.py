"""``kubectl yurttunnel``: it asks a cluster, and says what there is in place of the rest."""

from __future__ import annotations

import contextlib
import io
import sys

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import main
from yurttunnel.cli.commands import every_command
from yurttunnel.cli.nodes import NodesOptions
from yurttunnel.cli.options import IN_CLUSTER
from yurttunnel.cli.plugin import ASKING, instead
from yurttunnel.ops.command_line import STATUS

IN_POD = "is for a process: in a server's pod, kubectl exec POD -- yurttunnel"


class PluginTests(SynchronousTestCase):
    """The command under the name by which kubectl finds it."""

    def ended(self, *arguments: str) -> tuple[str, str, int]:
        """Run a command: what it prints, what it says is wrong, and its status."""
        self.patch(sys, "argv", ["/usr/local/bin/kubectl-yurttunnel", *arguments])
        shown, beside = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(beside):
            ending = self.assertRaises(SystemExit, main.main)
        return shown.getvalue(), beside.getvalue(), ending.code

    def test_what_asks_no_cluster(self) -> None:
        """It is refused with what serves in its place there, and does not look at this machine."""
        for words, cure in {
            "logs-level": f"logs-level {IN_POD} logs-level",
            "forward ls": f"forward ls {IN_POD} forward ls",
            "diagnose": f"diagnose {IN_POD} diagnose -o /dev/shm/server.tar.gz",
            "token list": "token list: a cluster has no join tokens, its agents get their"
            " certificates from it",
            "revoke edge-1": "revoke: in a cluster a node is cut off by kubectl delete node NODE;"
            " take its kubelet's credentials away, too, or it registers anew",
            "server": "server asks no cluster: run it without kubectl, yurttunnel server",
            "man status": "man asks no cluster: run it without kubectl, yurttunnel man",
        }.items():
            told = self.ended(*words.split())
            self.assertEqual(("", f"kubectl yurttunnel: {cure}\n", STATUS), told)

    def test_what_asks(self) -> None:
        """Those that do have the flag for it, which they are given."""
        for command in every_command():
            asks = IN_CLUSTER in command.options().table
            self.assertEqual((asks, asks), (command in ASKING, not instead(command)), command.name)
        asked = []
        self.patch(NodesOptions, "servers", lambda options: asked.append(options.in_cluster) or [])
        self.assertEqual(0, self.ended("nodes")[2])
        self.assertEqual([True], asked)

    def test_help(self) -> None:
        """It lists what can be done so, and where the rest is."""
        shown, _, status = self.ended("--help")
        listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
        self.assertEqual((["status", "nodes", "node"], 0), (listed, status))
        self.assertTrue(shown.startswith("Usage: kubectl yurttunnel COMMAND [flags]\n"))
        self.assertIn("run without kubectl: yurttunnel --help.", shown)
