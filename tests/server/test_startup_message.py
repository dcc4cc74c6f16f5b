"""The message of a server without a cluster once it is ready."""

from __future__ import annotations

import io
import shlex
from ipaddress import ip_address

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import clock_now, state_directory
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.records import NodeRecords
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import JOIN_TOKEN_FILE, JoinToken, TokenStore
from yurttunnel.server import join_command
from yurttunnel.server.options import Options
from yurttunnel.server.standalone import print_startup_message

PAGE = "http://127.0.0.1:10265/"


class GreetingTests(SynchronousTestCase):
    """The message is complete for a user, and puts no secret into a log."""

    def setUp(self) -> None:
        """Create a server with a join token."""
        clock, self.directory = clock_now(), state_directory(self)
        revocations = Revocations(clock, self.directory, NodeRecords(self.directory))
        tokens = TokenStore(clock, self.directory, "5" * 64)
        self.file = JoinTokenFile(clock, self.directory, tokens, revocations)
        self.file.refresh()
        self.settings = Options({}).settings_of(
            "--standalone", "--state-dir=S", "--cert-ips=203.0.113.10"
        )

    def find(self, address: str, *flags: str) -> None:
        """Set the outgoing address of this machine, and the server's flags."""
        self.patch(join_command, "source_address", lambda: ip_address(address))
        self.settings = Options({}).settings_of("--standalone", "--state-dir=S", *flags)

    def print_startup_message(self, terminal: io.StringIO | None) -> list[str]:
        """Greet; return the log."""
        with capturedLogs() as events:
            print_startup_message(self.settings, self.directory.path, PAGE, self.file, terminal)
        return [formatEvent(event) for event in events]

    def test_terminal(self) -> None:
        """Users get the page, the file, and a command that an agent accepts unchanged."""
        screen = io.StringIO()
        self.assertEqual([], self.print_startup_message(screen))
        output = screen.getvalue()
        self.assertIn(PAGE, output)
        self.assertIn(str(self.directory.path.absolute() / JOIN_TOKEN_FILE), output)
        [line] = [each for each in output.splitlines() if "yurttunnel agent" in each]
        variable, _, *command = shlex.split(line)
        name, _, value = variable.partition("=")
        own = {"NODE_NAME": "edge-1", "NODE_IP": "192.0.2.7", "HOME": "/home/me", name: value}
        settings = AgentOptions(own).settings_of(*command[1:])
        self.assertEqual((("203.0.113.10", 10262),), settings.servers)
        token = JoinToken.parse(settings.mode.join_token)
        self.assertEqual(self.file.read(), token)

    def test_log(self) -> None:
        """Without a terminal the message names the file, without its contents."""
        [output] = self.print_startup_message(None)
        self.assertIn(PAGE, output)
        self.assertIn(str(self.directory.path.absolute() / JOIN_TOKEN_FILE), output)
        self.assertIn(
            "yurttunnel agent --standalone --tunnelserver-addr 203.0.113.10:10262", output
        )
        self.assertNotIn(self.file.read().secret, output)

    def test_private_address(self) -> None:
        """Nodes elsewhere may know this machine by another address: the message has the remedy."""
        doubt = (
            "is a private address: if nodes reach this machine at another one, start the server"
            " with --cert-ips ADDRESS"
        )
        for address in ("10.0.0.5", "172.31.9.1", "192.168.1.20", "100.64.3.2", "fd00::5"):
            self.find(address)
            screen = io.StringIO()
            self.print_startup_message(screen)
            self.assertIn(f"\n{address} {doubt}\n", screen.getvalue())
            [output] = self.print_startup_message(None)
            self.assertTrue(output.endswith(f"; {address} {doubt}"), output)

    def test_address_without_doubt(self) -> None:
        """A public or configured address needs no remark."""
        for address, *flags in (
            ("198.51.14.7",),
            ("2a00:1450::1",),
            ("10.0.0.5", "--cert-ips=10.0.0.5"),
            ("10.0.0.5", "--cert-dns-names=cloud.lan"),
            ("10.0.0.5", "--bind-address=10.0.0.5"),
        ):
            self.find(address, *flags)
            screen = io.StringIO()
            self.print_startup_message(screen)
            [output] = self.print_startup_message(None)
            self.assertIn("yurttunnel agent", output)
            self.assertNotIn("private", screen.getvalue() + output)

    def test_no_token(self) -> None:
        """A file that others can read is not shown, and the problem is reported."""
        path = self.directory.path / JOIN_TOKEN_FILE
        path.chmod(0o644)
        screen = io.StringIO()
        [output] = self.print_startup_message(screen)
        self.assertEqual("", screen.getvalue())
        self.assertIn("chmod 0600 it", output)
