"""Runs the programs like ``twist``, but without its flags, and with the log on standard error.

The options and services are those of the plugins in ``twisted/plugins``, started and stopped in the
same order, with the same exit status.
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

from yurttunnel.cli.main import ended_by_interrupt
from yurttunnel.ops.command_line import exit_on_usage_error
from yurttunnel.ops.options import CommandOptions
from yurttunnel.tunnel.reactor import installed_reactor


@dataclass(frozen=True, slots=True)
class Program:
    """``yurttunnel NAME``; its options and its service are those of ``plugin``.

    ``level`` is the lowest level that is logged if ``--v`` is not given.
    """

    name: str
    text: str
    plugin: str
    level: str = "info"

    def options(self) -> CommandOptions[Any]:
        """Return its options; the modules that they need are only imported here."""
        return cast(CommandOptions[Any], self._maker().options())

    def run(self, arguments: Sequence[str]) -> None:
        """Run it until it stops; an error in ``arguments`` ends the process with a message."""
        with ended_by_interrupt():
            installed_reactor()
            twist_options = _TwistOptions(f"yurttunnel {self.name}", self.level)
            options = self.options()
            options.parent = twist_options
            with exit_on_usage_error():
                options.parseOptions(arguments)
            service = Twist.service(self._maker(), options)
            Twist.startService(twist_options["reactor"], service)
        Twist.run(cast(Any, twist_options))

    def _maker(self) -> ServiceMaker:
        return cast(
            ServiceMaker, getattr(import_module(f"twisted.plugins.{self.plugin}"), self.plugin)
        )


class _TwistOptions(usage.Options):
    """The parent options of a program, in place of twist's own."""

    subCommand = ""

    def __init__(self, invocation: str, level: str) -> None:
        super().__init__()
        self._invocation = invocation
        self["reactor"] = installed_reactor()
        self["logLevel"] = LogLevel.levelWithName(level)
        self["logFile"] = sys.stderr
        self["fileLogObserverFactory"] = textFileLogObserver

    def getSynopsis(self) -> str:
        """Return the usage line of the program."""
        return f"Usage: {self._invocation}"


PROGRAMS = (
    Program("server", "cloud end: accepts agents and forwards requests", "yurttunnel_server"),
    Program("agent", "edge end: dials out and connects to targets", "yurttunnel_agent"),
    Program(
        "quickstart",
        "everything on one machine, for a first try",
        "yurttunnel_quickstart",
        # Users who want to follow the tunnel can raise the level.
        level="warn",
    ),
    Program("hub", "caching proxy to the Kubernetes API on a node", "yurthub"),
    Program("proxy", "Service proxy on a node, replaces kube-proxy", "yurtproxy"),
)
