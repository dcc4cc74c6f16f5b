"""The box "Add a node" of the status page."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.status_pages import ParsedPage
from yurttunnel.ops.status.sections import live
from yurttunnel.server.joining_box import add_section
from yurttunnel.server.options import Options


class JoiningBoxTests(SynchronousTestCase):
    """A server whose token is in a file."""

    def test_what_to_do(self) -> None:
        """It names the file to copy and the command that uses it, and does not show the secret."""
        token = Path(self.mktemp())
        token.write_text("9fb2c1.77aa", "utf-8")
        options = Options()
        options.parseOptions(["--standalone", "--state-dir", "S", "--cert-ips", "203.0.113.10"])
        section = add_section(options.settings, token)
        text = ParsedPage("".join(live("add", section.content)).encode()).sections["add"]
        self.assertIn(f"Copy the file {token.absolute()} of ", text)
        self.assertIn("yurttunnel agent --standalone --tunnelserver-addr 203.0.113.10:10262", text)
        self.assertIn(f"--join-token-file {token.name}", text)
        self.assertNotIn("9fb2c1.77aa", text)
