"""The agents of a worker: the first process says who each is, and whether it may come in."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from twisted.python.failure import Failure

from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.server.agents import AgentListener, AgentListenerSettings
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello


class AdmittedAgents(AgentListener):
    """Takes connections of agents that have been passed on, and begins or resumes sessions.

    ``ask(number, certificate)`` asks the first process about a certificate in DER form, which TLS
    has verified; :meth:`admitted` or :meth:`refused` is called with its answer. Until then nothing
    more is read of the connection, and its time for the HELLO goes on. So what has been revoked has
    nowhere a say, and the first process alone keeps account of it.
    """

    def __init__(
        self,
        context: SessionContext,
        registry: SessionRegistry,
        settings: AgentListenerSettings,
        ask: Callable[[int, bytes], object],
    ) -> None:
        super().__init__(
            context, registry, _decided, settings, others={}, replicas=lambda: self._servers
        )
        self._ask = ask
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[SessionConnection, Hello]] = {}
        self._servers: int | None = None

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Ask who it is."""
        certificate = connection.peer_certificate
        if certificate is None:
            raise Violation(Code.NOT_AUTHORIZED, "the agent has shown no certificate")
        connection.wait()
        number = next(self._numbers)
        self._asked[number] = (connection, hello)
        self._ask(number, certificate.public_bytes(Encoding.DER))

    def admitted(self, number: int, identity: NodeIdentity, servers: int | None) -> None:
        """Let an agent in; ``servers`` is how many it is told that there are."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return
        connection, hello = asked
        self._servers = servers
        try:
            self.admit(connection, hello, identity)
        except Violation as violation:
            connection.refuse(violation.code, violation.text)
        connection.go_on()

    def servers_changed(self, servers: int) -> None:
        """Notify the agents that are there how many servers there are now, and those that come."""
        self._servers = servers
        self.replicas_changed()

    def refused(self, number: int, code: Code, text: str) -> None:
        """Notify an agent why it is not let in."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            connection, _ = asked
            connection.refuse(code, text)
            connection.go_on()

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Wait for no answer about it."""
        for number, (asked, _) in list(self._asked.items()):
            if asked is connection:
                del self._asked[number]
        super().connection_ended(connection, reason)

    def identities(self, node: str) -> list[NodeIdentity]:
        """Return as whom the sessions of ``node`` have been let in."""
        return [each.identity for each in self.node_sessions() if each.node == node]

    def end(self, node: str, code: Code, text: str, identity: NodeIdentity | None = None) -> None:
        """End the sessions of ``node``, or only those that were let in as ``identity``."""
        for session in self.node_sessions():
            if session.node == node and identity in (None, session.identity):
                session.tunnel.close(code, text)


def _decided(identity: NodeIdentity) -> bool:
    """Return whether nobody is revoked whom the first process has let in."""
    return False


def certificate_from_der(certificate: bytes) -> x509.Certificate:
    """Read what ``ask`` was called with."""
    return x509.load_der_x509_certificate(certificate)
