"""The box "Add a node" of the status page."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import FakeInformers, node
from tests.ops.status_pages import ParsedPage
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.kube.resources import NODES
from yurttunnel.ops.status.sections import Section, live
from yurttunnel.server import join_command
from yurttunnel.server.join_command import join_section, label_node_section
from yurttunnel.server.options import Options


def shown(section: Section) -> str:
    """Return the text that is shown."""
    return ParsedPage("".join(live("add", section.content)).encode()).sections["add"]


class JoiningBoxTests(SynchronousTestCase):
    """The box of a server without a cluster, and of one in a cluster."""

    def test_what_to_do(self) -> None:
        """The box has the file to copy and the command that uses it, but not the secret."""
        token = Path(self.mktemp())
        token.write_text("9fb2c1.77aa", "utf-8")
        settings = Options().settings_of(
            "--standalone", "--state-dir", "S", "--cert-ips", "203.0.113.10"
        )
        text = shown(join_section(settings, token))
        self.assertIn(f"Copy the file {token.absolute()} of ", text)
        self.assertIn("yurttunnel agent --standalone --tunnelserver-addr 203.0.113.10:10262", text)
        self.assertIn(f"--join-token-file {token.name}", text)
        self.assertNotIn("9fb2c1.77aa", text)

    def test_private_address(self) -> None:
        """The box also mentions that nodes elsewhere may need another address."""
        self.patch(join_command, "source_address", lambda: ip_address("10.0.0.5"))
        settings = Options({}).settings_of("--standalone", "--state-dir", "S")
        self.assertIn(
            "10.0.0.5 is a private address: if nodes reach this machine at another one, start the"
            " server with --cert-ips ADDRESS",
            shown(join_section(settings, Path(self.mktemp()))),
        )

    def test_in_a_cluster(self) -> None:
        """The label in the command makes a node an edge node."""
        _, command = shown(label_node_section()).split("kubectl label node NODE ")
        label, value = command.split("=")
        informers = FakeInformers()
        informers.put(NODES, node("edge-1", labels={label: value}))
        [found] = Nodes(informers).all()
        self.assertTrue(found.edge)
