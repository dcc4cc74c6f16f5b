"""Authorization of callers: the permissions of ``--allow-connect``, which calls have to pass.

A call passes the gates of its entry once its caller, its node and its target there are known.
Without permissions there is no restriction: everyone who can connect reaches every node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from twisted.internet.address import UNIXAddress
from zope.interface import implementer

from yurttunnel.http.authority import (
    display_host,
    join_authority,
    parse_address,
    parse_port,
    split_authority,
    strip_port,
)
from yurttunnel.http.connection import is_secure
from yurttunnel.http.errors import RequestFailed
from yurttunnel.ops.unix_peers import user_id_behind
from yurttunnel.server.frontends.calls import Call, IGate
from yurttunnel.server.frontends.kubelet.callers import CertificateUsers

_SYNTAX = (
    "write certificate:NAME=NODE/HOST:PORT, user:UID=NODE/HOST:PORT or"
    " address:ADDRESS=NODE/HOST:PORT, with * for every node, host or port"
)
_ANY = "*"
_USER_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


class Identity(NamedTuple):
    """The identity of a caller: ``kind`` is how it is known, and determines what ``name`` is.

    ``certificate``: the common name of a certificate verified by TLS; ``user``: the numeric id of
    the user at the other end of a Unix socket; ``address``: the IP address, if nothing else is
    known. An empty ``name`` has no permissions at all.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """Return it in the form of ``--allow-connect``."""
        return f"{self.kind}:{self.name}"


class Permission(NamedTuple):
    """``identity`` may reach ``host``:``port`` through ``node``; ``None`` matches every value."""

    identity: Identity
    node: str | None
    host: str | None
    port: int | None

    def covers(self, identity: Identity, call: Call) -> bool:
        """Return whether it permits a call.

        ``node`` is compared to the name of the node that serves the call, however the caller names
        it; if none is connected, to the name that the caller uses.
        """
        return (
            identity == self.identity
            and self.node in (None, call.serving_node or call.node)
            and self.host in (None, call.host)
            and self.port in (None, call.port)
        )


def parse_permission(text: str) -> Permission:
    """Parse ``KIND:WHO=NODE/HOST:PORT``; raises ``ValueError`` with a one-line reason.

    A certificate's name may contain any characters; the target follows the last ``=``.
    """
    identity, equals, target = text.rpartition("=")
    node, slash, authority = target.partition("/")
    if not (equals and slash):
        raise ValueError(f"{text!r} is not a permission: {_SYNTAX}")
    try:
        return Permission(_identity(identity), _node(node), *_destination(authority))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a permission: {error}; {_SYNTAX}") from None


def _identity(text: str) -> Identity:
    kind, _, name = text.partition(":")
    if not name:
        raise ValueError(f"{text!r} has no identity")
    match kind:
        case "certificate":
            return Identity(kind, name)
        case "user":
            if not _USER_ID.fullmatch(name):
                raise ValueError(f"{name} is not a user id")
            return Identity(kind, str(int(name)))
        case "address":
            address = parse_address(name)
            if address is None:
                raise ValueError(f"{name} is not an IP address")
            return Identity(kind, str(address))
    raise ValueError(f"{kind!r} is not a kind of identity")


def _node(text: str) -> str | None:
    return None if text == _ANY else strip_port(text)


def _destination(text: str) -> tuple[str | None, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} has no port")
    return (
        None if host == _ANY else split_authority(f"{host}:1")[0],
        None if port == _ANY else parse_port(port),
    )


@implementer(IGate)
class Permissions:
    """The gate of an entry: callers need one of ``permissions``, if there are any.

    The permissions can be replaced; the new ones apply to later calls.
    """

    def __init__(self, permissions: Sequence[Permission]) -> None:
        self.permissions = permissions
        self._users = CertificateUsers()

    def admit(self, call: Call) -> None:
        """Admit a call, or raise :class:`RequestFailed` (403) if no permission covers it."""
        if not self.permissions:
            return
        identity = self.identify(call.transport)
        if any(permission.covers(identity, call) for permission in self.permissions):
            return
        target = f"{call.node}/{join_authority(call.host, call.port)}"
        raise RequestFailed(
            403, f"{identity} may not reach {target}: no --allow-connect of the server permits it"
        )

    def identify(self, transport: Any) -> Identity:
        """Return the identity of the peer; a node has none, whatever its certificate contains."""
        if is_secure(transport):
            certificate = self._users.of(transport)
            known = certificate is not None and not certificate.is_node
            return Identity("certificate", certificate.user.name if known and certificate else "")
        peer = transport.getPeer()
        if isinstance(peer, UNIXAddress):
            return Identity("user", str(user_id_behind(transport.getHandle())))
        return Identity("address", display_host(getattr(peer, "host", "")))
