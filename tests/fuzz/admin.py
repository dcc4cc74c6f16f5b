"""Fuzz target of a server's socket: requests of its own user, which change things, too."""

from __future__ import annotations

import functools
import re
import tempfile

from tests.fuzz.cases import PLAN, Target
from tests.server.admin_pages import ServerPages, ThreadlessReactor
from yurttunnel.pki.directory import StateDirectory

STATUSES = (100, 200, 400, 403, 404, 405, 408, 409, 413, 414, 431, 500, 501, 505)

_SECRET = re.compile(rb"[0-9a-f]{16}\.[0-9a-f]{32}")

_MAY_HAVE_TOKEN = re.compile(rb"^POST /v1/tokens[? \t\r\n]")

_MOST_TOKENS = 32
"""Half of those that there can be: then all but the one in the file are revoked."""


@functools.cache
def _pages() -> tuple[ServerPages, tempfile.TemporaryDirectory[str]]:
    """Return one server for all cases, as a real one would be; its directory is kept with it."""
    directory = tempfile.TemporaryDirectory(prefix="yurttunnel-fuzz-")
    reactor = ThreadlessReactor()
    reactor.advance(1_800_000_000)
    return ServerPages(reactor, StateDirectory.open(f"{directory.name}/S")), directory


def check(case: bytes) -> bool:
    """Whatever is asked is answered with a status, and no secret but by the page that gives it."""
    pages, _ = _pages()
    answer = pages.site.send(case[PLAN:])
    while pages.reactor.take():
        pass
    if len(tokens := pages.tokens.good()) > _MOST_TOKENS:
        for each in tokens[1:]:
            pages.tokens.revoke(each.token_id)
    if not answer:
        return False
    status = int(answer.split(maxsplit=2)[1])
    assert status in STATUSES, f"the status is {status}"
    if not _MAY_HAVE_TOKEN.search(case[PLAN:]):
        assert _SECRET.search(answer) is None, f"a secret is told: {answer!r}"
    return status == 200


_HEADS = [f"{method} /v1".encode() for method in ("GET", "POST", "HEAD", "PUT", "DELETE")]

SOCKET = Target(
    "admin",
    check,
    [
        *_HEADS,
        *(
            f"{method} /v1/{page}".encode()
            for method in ("GET", "POST")
            for page in (
                *("process", "tokens", "tokens/revoke", "revocations"),
                *("forwards", "forwards/remove"),
            )
        ),
    ],
    [
        *(b"/tokens", b"/..", b"/%2e%2e", b"/%00", b"?lifetime=1h", b"&lifetime=366d", b"?id=0"),
        *(b"?node=EDGE", b"?forward=9000=edge-1/127.0.0.1:80", b"&replace=true"),
        *(b"?listen=127.0.0.1:9000", b"?listen=[::1]:9", b"&x=%ff", b" HTTP/1.1\r\n"),
        *(b" HTTP/1.1\r\n\r\n", b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n\r\n"),
        *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"),
        *(b"X: y\r\n" * 60, b"a" * 5000, b"5\r\nabcde\r\n0\r\n\r\n"),
    ],
)
