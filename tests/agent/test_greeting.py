"""The message of an agent without a cluster on a terminal."""

from __future__ import annotations

import io
import shlex

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.options import Options
from yurttunnel.agent.standalone import greeting
from yurttunnel.ops.announcement import INTERVAL
from yurttunnel.ops.readiness import Readiness
from yurttunnel.server.frontends.forward import parse_forward


class GreetingTests(SynchronousTestCase):
    """It has the command that reaches the node, if there is one."""

    def said(self, *flags: str) -> str | None:
        """Connect an agent with these flags; return its message, ``None`` without one."""
        settings = Options({}).settings_of(
            "--standalone", "--state-dir=A", "--node-name=edge-1", "--tunnelserver-addr=a", *flags
        )
        clock, screen, readiness = Clock(), io.StringIO(), Readiness()
        announcement = greeting(clock, readiness, settings, screen)
        if announcement is None:
            return None
        announcement.startService()
        self.addCleanup(announcement.stopService)
        clock.advance(INTERVAL)
        return screen.getvalue()

    def test_command(self) -> None:
        """The command names an address that the agent allows."""
        for address, target in (("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "2001:db8::7")):
            said = self.said("--node-ip", address)
            [line] = [each for each in said.splitlines() if "forward add" in each]
            *_, given = shlex.split(line)
            forward = parse_forward(given)
            self.assertEqual(
                ("edge-1", target, 80, 9000),
                (forward.node, forward.host, forward.port, forward.listen_port),
            )

    def test_nothing(self) -> None:
        """There is no message if the user has set all destinations, or without a terminal."""
        self.assertIsNone(self.said("--node-ip=192.0.2.7", "--allow-destination=no-default"))
        settings = Options({}).settings_of(
            "--standalone",
            "--state-dir=A",
            "--node-name=edge-1",
            "--tunnelserver-addr=a",
            "--node-ip=192.0.2.7",
        )
        self.assertIsNone(greeting(Clock(), Readiness(), settings, None))
