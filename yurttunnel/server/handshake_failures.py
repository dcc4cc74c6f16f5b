"""Warnings about peers whose handshake failed, which anybody can cause."""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.authority import display_host, join_authority
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.tls_errors import problem_with_peer


class HandshakeFailureLog:
    """Logs failed handshakes with peers, once a minute for each reason."""

    def __init__(self, clock: IReactorTime, log: Logger) -> None:
        self._log = RateLimitedLog(clock, log)

    def warn(self, text: str, reason: Failure, **fields: object) -> None:
        """Log ``text``, a literal formatted with ``fields``, and the meaning of ``reason``."""
        problem = problem_with_peer(reason)
        if reason.check(SSL.Error):
            # One of a few texts, without text of the peer unless a trusted authority has signed it:
            # so each has a rate limit of its own.
            text = f"{text}: {problem.replace('{', '{{').replace('}', '}}')}"
        else:
            text += ": {problem}"
        self._log.warn(text, problem=problem, **fields)

    def warn_of_caller(self, transport: Any, reason: Failure) -> None:
        """Warn of a caller whose TLS handshake failed."""
        self.warn("a caller from {address} is refused", reason, address=peer_address(transport))


def peer_authority(transport: Any) -> str:
    """Return the address and port of the peer in readable form."""
    peer = transport.getPeer()
    return (
        join_authority(display_host(peer.host), peer.port) if hasattr(peer, "port") else str(peer)
    )


def peer_address(transport: Any) -> str:
    """Return the IP address of the peer in readable form."""
    return display_host(getattr(transport.getPeer(), "host", "an unknown address"))
