"""Telling the operator of peers that TLS has refused, which anybody can bring about."""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.authority import join_authority, known_host
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.problems import problem_with_peer


class RefusedPeers:
    """Warns of connections that came to nothing, once in a minute for each reason."""

    def __init__(self, clock: IReactorTime, log: Logger) -> None:
        self._log = RateLimitedLog(clock, log)

    def warn(self, text: str, reason: Failure, **fields: object) -> None:
        """Log ``text``, a literal that is filled with ``fields``, and what ``reason`` means."""
        problem = problem_with_peer(reason)
        if reason.check(SSL.Error):
            # One of a few sentences, without words of the peer unless an authority that is
            # trusted has signed them: each counts by itself.
            text = f"{text}: {problem.replace('{', '{{').replace('}', '}}')}"
        else:
            text += ": {problem}"
        self._log.warn(text, problem=problem, **fields)

    def warn_of_caller(self, transport: Any, reason: Failure) -> None:
        """Warn of a caller that TLS has refused."""
        self.warn("a caller from {address} is refused", reason, address=address_behind(transport))


def authority_behind(transport: Any) -> str:
    """Return the address and port of who is connected, for people."""
    peer = transport.getPeer()
    return join_authority(known_host(peer.host), peer.port) if hasattr(peer, "port") else str(peer)


def address_behind(transport: Any) -> str:
    """Return the IP address of who is connected, for people."""
    return known_host(getattr(transport.getPeer(), "host", "an unknown address"))
