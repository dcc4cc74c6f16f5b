"""How a command begins: the reactor as all programs use it, and ``--diagnose`` in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from yurttunnel.ops.clocks import make_steady
from yurttunnel.ops.diagnose.flags import bundle_path
from yurttunnel.ops.diagnose.subject import Subject
from yurttunnel.ops.ending import stop_once
from yurttunnel.ops.options import CommandOptions
from yurttunnel.tunnel.reactor import IReactor, installed_reactor

Settings = TypeVar("Settings")


def begin(
    options: CommandOptions[Settings], subject: Callable[[Settings], Subject]
) -> tuple[IReactor, Settings]:
    """Return the reactor, with a steady clock, and the settings.

    With ``--diagnose`` the process looks at ``subject(settings)`` instead, and ends.
    """
    reactor = installed_reactor()
    make_steady(reactor)
    stop_once(reactor)
    if options["diagnose"]:
        # What only this needs takes time and memory to import.
        from yurttunnel.ops.diagnose.command import run_diagnosis

        run_diagnosis(subject(options.settings), bundle_path(options))
    return reactor, options.settings
