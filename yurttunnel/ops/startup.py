"""The startup that all programs share, and ``--diagnose``, which replaces it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import TypeVar

from twisted.logger import Logger

from yurttunnel.ops.clocks import make_steady
from yurttunnel.ops.diagnose.flags import bundle_path
from yurttunnel.ops.diagnose.subject import Subject
from yurttunnel.ops.options import CommandOptions
from yurttunnel.ops.shutdown import ignore_repeated_stops, stop_on_sighup
from yurttunnel.ops.threaded_resolver import ThreadedResolver
from yurttunnel.tunnel.reactor import IReactor, installed_reactor

Settings = TypeVar("Settings")

_log = Logger()


def initialize(
    options: CommandOptions[Settings], subject: Callable[[Settings], Subject]
) -> tuple[IReactor, Settings]:
    """Raise the limit of open files, and return the reactor and the settings.

    The reactor then has a steady clock, and name lookups that do not outlive the process. With
    ``--diagnose``, diagnose ``subject(settings)`` instead, and exit.
    """
    reactor = installed_reactor()
    make_steady(reactor)
    ignore_repeated_stops(reactor)
    reactor.installNameResolver(ThreadedResolver(reactor))
    if options["diagnose"]:
        # Imported here because it takes time and memory, and nothing else needs it.
        from yurttunnel.ops.diagnose.command import run_diagnosis

        run_diagnosis(subject(options.settings), bundle_path(options))
    stop_on_sighup(reactor, reactor.stop)
    raise_open_files_limit()
    return reactor, options.settings


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit, as the runtime of Go does.

    The soft limit is low only for programs that use select(2), which these do not, and a pod
    specification has no field for it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            _log.warn(
                "The limit of open files stays at {soft}: {error}", soft=soft, error=str(error)
            )
