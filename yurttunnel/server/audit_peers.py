"""The identity of a caller, for the audit log."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from cryptography.x509.oid import NameOID
from twisted.internet.address import UNIXAddress

from yurttunnel.http.connection import is_secure
from yurttunnel.ops.unix_peers import peer_credentials, user_id_behind
from yurttunnel.pki.contexts import peer_certificate
from yurttunnel.server.handshake_failures import peer_authority


@dataclass(frozen=True, slots=True)
class Peer:
    """A caller; ``identified_by`` is how it is known: ``certificate``, ``token`` or ``address``.

    ``name`` is the common name in the certificate, the user name that the Kubernetes API has
    returned for the token, or the same as ``address``.
    """

    name: str
    identified_by: str
    address: str

    def identified_by_token(self, user: str) -> Peer:
        """Return the same peer, identified by the token of ``user``."""
        return Peer(user, "token", self.address)


def audited_peer(transport: Any) -> Peer:
    """Return the peer of a transport; over TLS, call it after the handshake."""
    address = _address(transport)
    name = _common_name(transport) if is_secure(transport) else ""
    return Peer(name, "certificate", address) if name else Peer(address, "address", address)


def _address(transport: Any) -> str:
    peer = transport.getPeer()
    if isinstance(peer, UNIXAddress):
        return _unix_credentials(transport.getHandle())
    return peer_authority(transport)


def unix_user(connection: socket.socket) -> str:
    """Return the user at the other end of a Unix socket."""
    return f"unix:uid={user_id_behind(connection)}"


def _unix_credentials(connection: socket.socket) -> str:
    """Return the user, group and process at the other end of a Unix socket."""
    process, user, group = peer_credentials(connection)
    return f"unix:uid={user},gid={group},pid={process}"


def _common_name(transport: Any) -> str:
    certificate = peer_certificate(transport)
    if certificate is None:
        return ""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return ", ".join(str(name.value) for name in names)
