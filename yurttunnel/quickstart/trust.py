"""The certificates of the quickstart, from an embedded authority, and the rights of its node."""

from __future__ import annotations

import base64
import json
from ipaddress import IPv4Address
from pathlib import Path

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurtlab.api.access import IAuthorizer, MastersOnly, Request, User
from yurtlab.api.resources import EVENTS, LEASES, NODES, PODS, Target
from yurttunnel.hub.identity.authorities import CA_FILE
from yurttunnel.hub.identity.identity import PKI_DIRECTORY
from yurttunnel.pki.authority import CALLER_LIFETIME, Authority
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL, CallerContexts, OptionalCallerContexts
from yurttunnel.pki.certificate_store import DatedStore
from yurttunnel.pki.certificate_template import (
    HUB_PREFIX,
    HUB_SERVER_PREFIX,
    hub_client_template,
    hub_serving_template,
)
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.credentials import Credentials, certificates_to_pem, key_to_pem, new_key
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.embedded_issuer import own_certificate
from yurttunnel.pki.names import CALLER_NAME, KUBELET_CLIENT_NAME
from yurttunnel.quickstart.options import ADDRESS

_ADMIN = "quickstart-admin"
_ADMIN_GROUP = "system:masters"


class QuickstartTrust:
    """The certificates of API, node and user, and the TLS contexts between them.

    All are issued by the CA of the tunnel's server, in ``server_state``, and live as long as the
    process.
    """

    def __init__(self, clock: IReactorTime, server_state: Path, node: str) -> None:
        self._clock = clock
        self._authority = Authority.open(clock, StateDirectory.open(server_state))
        self.api = OptionalCallerContexts(self._serving("kubernetes", "localhost"))
        self.node = CallerContexts(self._serving(node), {CALLER_NAME, KUBELET_CLIENT_NAME})
        self.api_to_tunnel = ClientContexts(self._caller(CALLER_NAME), HTTP_PROTOCOL)

    def kubeconfig(self, port: int) -> bytes:
        """Return the kubeconfig for the administrator of the API on ``port``."""
        credentials = self._caller(_ADMIN, _ADMIN_GROUP)
        authority = certificates_to_pem([self._authority.certificate])
        name = "yurttunnel-quickstart"
        # JSON is valid YAML.
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": f"https://{ADDRESS}:{port}",
                        "certificate-authority-data": _base64(authority),
                    },
                }
            ],
            "users": [
                {
                    "name": _ADMIN,
                    "user": {
                        "client-certificate-data": _base64(
                            certificates_to_pem([credentials.certificate])
                        ),
                        "client-key-data": _base64(key_to_pem(credentials.key)),
                    },
                }
            ],
            "contexts": [{"name": name, "context": {"cluster": name, "user": _ADMIN}}],
            "current-context": name,
        }
        return json.dumps(content, indent=2).encode() + b"\n"

    def write_for_hub(self, root: Path, node: str) -> None:
        """Store in the hub's directory what the signers of a cluster would issue to it."""
        directory = StateDirectory.open(root / PKI_DIRECTORY)
        directory.write(CA_FILE, certificates_to_pem([self._authority.certificate]))
        for prefix, template in (
            (HUB_PREFIX, hub_client_template(node)),
            (HUB_SERVER_PREFIX, hub_serving_template(node, [IPv4Address(ADDRESS)])),
        ):
            store = DatedStore(self._clock, directory, prefix)
            own_certificate(self._clock, self._authority, prefix, template, store, CALLER_LIFETIME)

    def _serving(self, *hosts: str) -> Credentials:
        key = new_key()
        addresses = [IPv4Address(ADDRESS)]
        certificate = self._authority.sign_server(key.public_key(), hosts, addresses)
        return self._authority.credentials(key, certificate)

    def _caller(self, name: str, organization: str | None = None) -> Credentials:
        key = new_key()
        certificate = self._authority.sign_client(key.public_key(), name, organization)
        return self._authority.credentials(key, certificate)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_MASTERS_ONLY = MastersOnly()

_READING = frozenset({"GET", "HEAD"})

_WRITING = frozenset(
    {
        ("POST", NODES, None),
        ("PUT", NODES, "status"),
        ("PUT", PODS, "status"),
        ("DELETE", PODS, None),
        *((method, EVENTS, None) for method in ("POST", "PUT", "PATCH")),
        *((method, LEASES, None) for method in ("POST", "PUT", "PATCH")),
    }
)
"""What the node may write, as method, kind and subresource: less than a node of a cluster."""


@implementer(IAuthorizer)
class NodeAndMasters:
    """Allows ``node`` to read objects, and to update its own and its pods' status; masters all.

    The hub lets every program of this machine use the node's identity. Pods are processes of the
    user who started the quickstart, so the node must not create them or execute commands in them.
    """

    def __init__(self, node: str) -> None:
        self._user = f"system:node:{node}"

    def check(self, user: User, request: Request) -> None:
        if user.name != self._user or not _is_for_nodes(request.method, request.target):
            _MASTERS_ONLY.check(user, request)


def _is_for_nodes(method: str, target: Target | None) -> bool:
    if target is None:
        return method in _READING
    if method in _READING:
        return target.subresource is None
    if method == "DELETE" and target.name is None:
        return False
    return (method, target.kind, target.subresource) in _WRITING
