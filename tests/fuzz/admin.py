"""Fuzz targets of the programs' admin sockets: requests of the program's own user, with changes."""

from __future__ import annotations

import atexit
import functools
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.cases import PLAN, Target
from tests.kept_secrets import secrets_in
from tests.server.admin_pages import (
    BOOTSTRAP_TOKEN,
    CONNECTED,
    LOST,
    Make,
    ServerPages,
    SocketPages,
    ThreadlessReactor,
    agent_pages,
    hub_pages,
    proxy_pages,
    server_pages,
)

STATUSES = (100, 200, 400, 403, 404, 405, 408, 409, 413, 414, 417, 431, 501, 503, 505)
"""The allowed statuses of responses; 500 would be a page that fails."""

_TOKEN = re.compile(rb"[0-9a-f]{16}\.[0-9a-f]{32}")

_MAY_HAVE_TOKEN = re.compile(rb"^POST /v1/tokens[? \t\r\n]")

_TOKEN_LIMIT = 32
"""Half of the maximum number of tokens; above it, all but the one in the file are revoked."""


@dataclass(frozen=True, slots=True)
class _Socket:
    pages: SocketPages
    secrets: frozenset[bytes]


@functools.cache
def _socket(make: Make) -> _Socket:
    """Return the socket of one process, which all cases share as in production."""
    directory = tempfile.TemporaryDirectory(prefix="yurttunnel-fuzz-")
    atexit.register(directory.cleanup)
    reactor = ThreadlessReactor()
    reactor.advance(1_800_000_000)
    pages = make(reactor, Path(directory.name))
    return _Socket(pages, secrets_in(directory.name) | {BOOTSTRAP_TOKEN.encode()})


def _check(make: Make, case: bytes) -> bool:
    """Each request gets an allowed status; only a created token reveals a secret."""
    request, socket = case[PLAN:], _socket(make)
    answer = socket.pages.send(request)
    socket.pages.reset_debug()
    if isinstance(socket.pages, ServerPages):
        _revoke_tokens(socket.pages)
    if not answer:
        return False
    status = int(answer.split(maxsplit=2)[1])
    assert status in STATUSES, f"the status is {status}"
    if not _MAY_HAVE_TOKEN.search(request):
        assert _TOKEN.search(answer) is None, f"a token is shown: {answer!r}"
    for secret in socket.secrets:
        assert secret not in answer, f"a secret is shown: {answer!r}"
    return status == 200


def _revoke_tokens(pages: ServerPages) -> None:
    if len(tokens := pages.tokens.valid()) > _TOKEN_LIMIT:
        for each in tokens[1:]:
            pages.tokens.revoke(each.token_id)


# -- the targets -------------------------------------------------------------------------------

_PAGES = (
    *("v1", "v1/process", "healthz", "readyz", "metrics", "?q=edge-1", "?node=edge-1", "debug"),
    *("debug/log-level", "debug/memory", "debug/sessions", "debug/stacks", "debug/reactor"),
)
"""The pages of all programs, supported or not: ``/`` lists the paths, and takes no parameter."""

_HEAD_ENDS = (b" HTTP/1.1\r\n\r\n", b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
"""The ends of a request head, each of which completes a request."""

_PIECES = (
    *(b"/..", b"/%2e%2e", b"/%00", b"/edge-1", b"?node=edge-1", b"?node=%ff", b"&q=<b>", b"&x=%ff"),
    *(b"?level=debug", b"?level=warn&seconds=1", b"&seconds=1e9", b"?frames=1", b"?frames=26"),
    *(b" HTTP/1.1\r\n", b"\r\n\r\n", *_HEAD_ENDS * 8),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"),
    *(b"X: y\r\n" * 60, b"a" * 5000, b"5\r\nabcde\r\n0\r\n\r\n"),
)


_CHANGES = ("debug/log-level?level=debug", "debug/memory?frames=1")


def _target(
    name: str,
    make: Make,
    pages: Sequence[str],
    changes: Sequence[str] = (),
    pieces: Sequence[bytes] = (),
) -> Target:
    every = {
        "GET": (*_PAGES, *pages),
        "POST": (*_PAGES, *pages, *_CHANGES, *changes),
        **dict.fromkeys(("HEAD", "PUT", "DELETE"), ("v1",)),
    }
    return Target(
        name,
        functools.partial(_check, make),
        [f"{method} /{page}".encode() for method, those in every.items() for page in those],
        [*pieces, *_PIECES],
    )


SOCKETS = (
    _target(
        "admin",
        server_pages,
        [
            *("v1/tokens", "v1/tokens/revoke", "v1/revocations", "v1/forwards"),
            *("v1/forwards/remove", "nodes", f"nodes/{CONNECTED}", f"nodes/{LOST}", "agents"),
            "steering",
        ],
        [
            *("v1/tokens?lifetime=1h", "v1/revocations?node=edge-9"),
            "v1/forwards?forward=9000=edge-1/127.0.0.1:80&replace=true",
            "v1/forwards/remove?listen=127.0.0.1:9000",
        ],
        [
            *(b"/tokens", b"?lifetime=1h", b"&lifetime=366d", b"?id=0", b"?node=EDGE"),
            *(b"?forward=9000=edge-1/127.0.0.1:80", b"&replace=true"),
            *(b"?listen=127.0.0.1:9000", b"?listen=[::1]:9"),
        ],
    ),
    _target("admin-agent", agent_pages, ("agents", "steering")),
    _target("admin-hub", hub_pages, ("pods", "v1/token", "v1/healthz", "v1/readyz")),
    _target("admin-proxy", proxy_pages, ("services", "mode")),
)
