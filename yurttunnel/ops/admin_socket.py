"""The Unix socket through which commands reach a process: access control and pages.

It is in the process's state directory, with mode 0600. Modes can be changed by mistake, so the
peer's credentials are checked, too: it must be the user of the process, or root. The socket serves
the pages of the meta port, ``/debug``, and, below ``/v1``, pages that only this socket has. The
limits are those of the meta port.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from twisted.internet.address import UNIXAddress
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel import __version__
from yurttunnel.ops.clocks import time_of_day, timestamp
from yurttunnel.ops.debug.pages import Page, Parameters, as_json
from yurttunnel.ops.http_site import (
    AnyPage,
    LimitedSite,
    PageRequest,
    PageResponse,
    Pages,
    not_found,
    with_access_control,
)
from yurttunnel.ops.listen import CannotListen, listen_unix
from yurttunnel.ops.readiness import Finding, Readiness, is_ready
from yurttunnel.ops.services import RetryingPort
from yurttunnel.ops.unix_peers import user_id_behind
from yurttunnel.tunnel.reactor import IReactor

SOCKET = "yurttunnel.sock"
"""The name of the socket in the state directory."""

SOCKET_MODE = 0o600

RETRY_SECONDS = 60.0
"""The interval in seconds of attempts to listen."""

VERSION = "v1"
"""The prefix of the paths whose responses are a stable interface, described in docs/admin.md."""


def refusal(request: PageRequest) -> str | None:
    """Return the reason, in one line, why ``request`` is refused, or ``None``."""
    if not isinstance(request.transport.getPeer(), UNIXAddress):
        return "this page is served only on a Unix socket"
    user = user_id_behind(request.transport.getHandle())
    if user in (0, os.geteuid()):
        return None
    return f"user id {user} is not allowed: only the user of this process and root are"


def admin_pages(meta: Pages, debug: Pages, own: Mapping[str, Page]) -> dict[str, AnyPage]:
    """Return the pages of the socket.

    ``meta`` has the pages of the meta port, ``debug`` those of ``/debug``, and ``own`` those below
    ``/v1`` by path, such as ``tokens`` and ``tokens/revoke``.
    """
    first = f"/{VERSION}"
    # The pages of /debug on the meta port have another access control.
    others = {path: page for path, page in meta.items() if not path.startswith(f"{first}/")}
    versioned = {f"{first}/{path}": page for path, page in own.items()}
    listed = Page(lambda parameters: as_json({"paths": sorted(versioned)}))
    own_pages: Pages = {**versioned, "/": listed, first: listed, "/*": not_found}
    return with_access_control({**others, **debug, **own_pages}, refusal)


class AdminSocket(RetryingPort):
    """Serves ``pages`` on :data:`SOCKET` in ``directory`` while it runs.

    While it cannot listen, for example because the directory does not exist, the process runs
    without it. A stale socket that a killed process has left is replaced.
    """

    _log = Logger()

    def __init__(self, reactor: IReactor, directory: Path, pages: Pages) -> None:
        self._site = LimitedSite(pages, reactor)
        path = str(directory.absolute() / SOCKET)
        listen = partial(listen_unix, reactor, SOCKET, path, self._site, mode=SOCKET_MODE)
        super().__init__(reactor, RETRY_SECONDS, "listening for commands", listen)

    def report(self, error: CannotListen) -> None:
        self._log.warn("the command yurttunnel cannot reach this process: {error}", error=error)


def process_page(
    clock: IReactorTime, program: str, readiness: Readiness, details: Mapping[str, object]
) -> Page:
    """Return the page; ``details`` are further fields of the program."""
    since = timestamp(time_of_day(clock))

    def show(parameters: Parameters) -> PageResponse:
        findings = readiness.findings()
        return as_json(
            {
                "program": program,
                "version": __version__,
                "pid": os.getpid(),
                "since": since,
                "ready": is_ready(findings),
                "checks": [_check(each) for each in findings],
                **details,
            }
        )

    return Page(show)


def _check(finding: Finding) -> dict[str, object]:
    return {"name": finding.name, "problem": finding.problem, "required": finding.required}
