"""The programs, run as by ``twist`` but without its flags, and with the log on standard error.

What is run is the same: the options and the services of the plugins in ``twisted/plugins``, started
and stopped in the same order, with the same exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from twisted.application.service import ServiceMaker
from twisted.application.twist._twist import Twist
from twisted.logger import LogLevel, textFileLogObserver
from twisted.python import usage

from yurttunnel.ops.command_line import ending_in_one_line
from yurttunnel.ops.options import CommandOptions
from yurttunnel.tunnel.reactor import installed_reactor


@dataclass(frozen=True, slots=True)
class Program:
    """``yurttunnel NAME``; its options and its service are those of ``plugin``.

    ``level`` names from which level on its log is shown where ``--v`` is not given.
    """

    name: str
    text: str
    plugin: str
    level: str = "info"

    def options(self) -> CommandOptions[Any]:
        """Make its options; only now is what it needs imported."""
        return cast(CommandOptions[Any], self._maker().options())

    def run(self, arguments: Sequence[str]) -> None:
        """Run it to its end; what is wrong with ``arguments`` ends the process with a sentence."""
        installed_reactor()
        surroundings = _Surroundings(f"yurttunnel {self.name}", self.level)
        options = self.options()
        options.parent = surroundings
        with ending_in_one_line():
            options.parseOptions(arguments)
        service = Twist.service(self._maker(), options)
        Twist.startService(surroundings["reactor"], service)
        Twist.run(cast(Any, surroundings))

    def _maker(self) -> ServiceMaker:
        return cast(
            ServiceMaker, getattr(import_module(f"twisted.plugins.{self.plugin}"), self.plugin)
        )


class _Surroundings(usage.Options):
    """What a program finds in the place of twist's own options."""

    subCommand = ""

    def __init__(self, invocation: str, level: str) -> None:
        super().__init__()
        self._invocation = invocation
        self["reactor"] = installed_reactor()
        self["logLevel"] = LogLevel.levelWithName(level)
        self["logFile"] = sys.stderr
        self["fileLogObserverFactory"] = textFileLogObserver

    def getSynopsis(self) -> str:
        """Return how the program is called."""
        return f"Usage: {self._invocation}"


PROGRAMS = (
    Program("server", "cloud end: accepts agents and forwards requests", "yurttunnel_server"),
    Program("agent", "edge end: dials out and connects to targets", "yurttunnel_agent"),
    Program(
        "quickstart",
        "everything on one machine, for a first try",
        "yurttunnel_quickstart",
        # Who wants to follow its tunnel asks for more.
        level="warn",
    ),
    Program("hub", "caching proxy to the Kubernetes API on a node", "yurthub"),
    Program("proxy", "Service proxy on a node, replaces kube-proxy", "yurtproxy"),
)
