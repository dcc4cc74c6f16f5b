"""``kubectl yurttunnel``: it queries a cluster and names alternatives for other commands."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NoReturn

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import main
from yurttunnel.cli.client import CommandFailed
from yurttunnel.cli.commands import all_commands
from yurttunnel.cli.nodes import NodesOptions
from yurttunnel.cli.options import IN_CLUSTER
from yurttunnel.cli.plugin import PLUGIN_COMMANDS, alternative_to
from yurttunnel.ops.command_line import STATUS

IN_POD = "is for a process: in a server's pod, kubectl exec POD -- yurttunnel"


class PluginTests(SynchronousTestCase):
    """The command under the name that kubectl looks for."""

    def ended(self, *arguments: str) -> tuple[str, str, int]:
        """Run a command; return stdout, stderr and the exit status."""
        self.patch(sys, "argv", ["/usr/local/bin/kubectl-yurttunnel", *arguments])
        shown, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
            ending = self.assertRaises(SystemExit, main.main)
        return shown.getvalue(), errors.getvalue(), ending.code

    def test_commands_without_cluster(self) -> None:
        """A command that cannot query a cluster is rejected with an alternative."""
        for words, cure in {
            "logs-level": f"logs-level {IN_POD} logs-level",
            "forward ls": f"forward ls {IN_POD} forward ls",
            "diagnose": f"diagnose {IN_POD} diagnose -o /dev/shm/server.tar.gz",
            "token list": "token list: a cluster has no join tokens, its agents get their"
            " certificates from it",
            "revoke edge-1": "revoke: in a cluster a node is cut off by kubectl delete node NODE;"
            " remove its kubelet's credentials, too, or it registers again",
            "server": "server does not query a cluster: run it without kubectl, yurttunnel server",
            "man status": "man does not query a cluster: run it without kubectl, yurttunnel man",
            # Help for a rejected command is rejected as well.
            "token": "token: a cluster has no join tokens, its agents get their certificates from"
            " it",
            "forward --help": f"forward {IN_POD} forward",
            "help config": "config does not query a cluster:"
            " run it without kubectl, yurttunnel config",
        }.items():
            ended_with = self.ended(*words.split())
            self.assertEqual(("", f"kubectl yurttunnel: {cure}\n", STATUS), ended_with)

    def test_commands_with_cluster(self) -> None:
        """Commands that can query a cluster need no flag for it; all others have an alternative."""
        names = [each.name for each in PLUGIN_COMMANDS.each()]
        for command in all_commands().each():
            can_query_cluster = IN_CLUSTER in command.options().table
            ended_with = alternative_to(command.name.split())
            self.assertEqual(
                (can_query_cluster, can_query_cluster),
                (command.name in names, not ended_with),
                command.name,
            )
        queried = []
        self.patch(
            NodesOptions, "servers", lambda options: queried.append(options.in_cluster) or []
        )
        self.assertEqual(0, self.ended("nodes", "-n", "x")[2])
        self.assertEqual([True], queried)

    def test_its_name(self) -> None:
        """Errors begin with the name by which the command was called."""

        def refuse(options: NodesOptions) -> NoReturn:
            raise CommandFailed("kubectl: Forbidden")

        self.patch(NodesOptions, "servers", refuse)
        for words, sentence, status in (
            (["nodes"], " nodes: kubectl: Forbidden", 1),
            (["nodes", "-o", "x"], " nodes: --output: 'x' is none of these: text, json", STATUS),
            (
                ["nodes", "edge-1"],
                " nodes: unexpected argument 'edge-1': did you mean kubectl yurttunnel node"
                " edge-1?",
                STATUS,
            ),
            (["nodez"], ": there is no command 'nodez': did you mean node or nodes?", STATUS),
            (
                ["nodes", "--outptu", "json"],
                " nodes: --outptu: there is no such flag: did you mean --output?",
                STATUS,
            ),
            (
                ["nodes", "--out", "yaml"],
                " nodes: --output: 'yaml' is none of these: text, json",
                STATUS,
            ),
            (
                ["get"],
                ": there is no command 'get': kubectl yurttunnel --help lists the commands",
                STATUS,
            ),
            (
                ["nodes", "--state-dir=S"],
                " nodes: --state-dir has no effect in a cluster, which is queried through its"
                " API: leave it out",
                STATUS,
            ),
        ):
            ended_with = self.ended(*words)
            self.assertEqual(("", f"kubectl yurttunnel{sentence}\n", status), ended_with)

    def test_help(self) -> None:
        """The help lists the plugin's commands and refers to the others."""
        shown, _, status = self.ended("--help")
        listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
        self.assertEqual((["status", "nodes", "node"], 0), (listed, status))
        self.assertTrue(shown.startswith("Usage: kubectl yurttunnel COMMAND [flags]\n"))
        self.assertIn("without kubectl: yurttunnel --help.", shown)

    def test_help_of_a_command(self) -> None:
        """A command's help has the plugin's name and no flags for local processes."""
        for name, words in (
            ("nodes", ("nodes", "--help")),
            ("nodes", ("help", "nodes")),
            ("status", ("status", "--help")),
        ):
            shown, _, status = self.ended(*words)
            self.assertEqual(0, status or 0)
            self.assertTrue(shown.startswith(f"Usage: kubectl yurttunnel {name} [options]\n"))
            self.assertIn("--namespace", shown)
            self.assertNotIn("this machine", shown)
            for flag in ("--state-dir", "--in-cluster"):
                self.assertNotIn(flag, shown)
        self.patch(sys, "argv", ["kubectl_complete-yurttunnel", "nodes", "--"])
        offered = io.StringIO()
        with contextlib.redirect_stdout(offered):
            main.complete()
        flags = [line.partition("\t")[0] for line in offered.getvalue().splitlines()]
        self.assertIn("--namespace", flags)
        self.assertNotIn("--state-dir", flags)
