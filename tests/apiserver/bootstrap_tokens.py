"""Joining a cluster with a bootstrap token, as kubeadm prepares it.

A token is a Secret in kube-system (pkg/controller/bootstrap, plugin/pkg/auth/authenticator/token/
bootstrap). The ConfigMap ``cluster-info`` in kube-public is signed with each of them, and readable
without authentication. Names and rules are those of cmd/kubeadm/app/phases/bootstraptoken.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import json
import time

from twisted.internet.interfaces import IReactorTime

from tests.apiserver.bootstrap_roles import rule
from tests.apiserver.jwt import BadToken
from tests.apiserver.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    look_up,
)
from yurtlab.api.access import AUTHENTICATED, User
from yurtlab.api.resources import CONFIG_MAPS, SECRETS
from yurtlab.api.store import Object, Store
from yurttunnel.ops.clocks import timestamp

JOINING = "system:bootstrappers:kubeadm:default-node-token"
"""The group of kubeadm's tokens for joining nodes."""

ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
"""The user of requests without credentials (--anonymous-auth of kube-apiserver)."""

_TYPE = "bootstrap.kubernetes.io/token"
_RBAC = "rbac.authorization.k8s.io"
_NODE_CLIENT = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"


class BootstrapTokens:
    """The bootstrap tokens in ``store``."""

    def __init__(self, clock: IReactorTime, store: Store) -> None:
        self._clock = clock
        self._store = store

    def create(self, token: str, seconds: float = 3600.0, group: str = JOINING) -> None:
        """Create a token that is valid for ``seconds``, and sign ``cluster-info`` with all."""
        token_id, _, secret = token.partition(".")
        data = {
            "token-id": token_id,
            "token-secret": secret,
            "expiration": timestamp(self._clock.seconds() + seconds),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": group,
        }
        body = {
            "metadata": {"name": f"bootstrap-token-{token_id}"},
            "type": _TYPE,
            "data": {key: _base64(value.encode()) for key, value in data.items()},
        }
        self._store.create(SECRETS, "kube-system", body)
        self._sign()

    def authenticate(self, token: str) -> User:
        """Return the user of a token; raise :class:`BadToken`."""
        token_id, _, secret = token.partition(".")
        found = look_up(self._store, SECRETS, "kube-system", f"bootstrap-token-{token_id}")
        data = {} if found is None else _data(found)
        if not data or data["token-secret"] != secret or self._is_over(data):
            raise BadToken("it is no bootstrap token")
        groups = ("system:bootstrappers", *data["auth-extra-groups"].split(","), AUTHENTICATED)
        return User(f"system:bootstrap:{token_id}", groups)

    def publish(self, server: str, authorities: bytes) -> None:
        """Publish the authority of the API's certificate, in PEM."""
        cluster = {"server": server, "certificate-authority-data": _base64(authorities)}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "", "cluster": cluster}],
            "contexts": None,
            "current-context": "",
            "users": None,
        }
        data = {"kubeconfig": json.dumps(kubeconfig)}
        former = look_up(self._store, CONFIG_MAPS, "kube-public", "cluster-info")
        if former is not None:
            self._store.remove(CONFIG_MAPS, "kube-public", "cluster-info")
        body = {"metadata": {"name": "cluster-info"}, "data": data}
        self._store.create(CONFIG_MAPS, "kube-public", body)
        self._sign()

    def _sign(self) -> None:
        """Sign ``cluster-info`` with each token (pkg/controller/bootstrap/bootstrapsigner.go)."""
        found = look_up(self._store, CONFIG_MAPS, "kube-public", "cluster-info")
        if found is None:
            return
        kubeconfig = found["data"]["kubeconfig"]
        data = {"kubeconfig": kubeconfig}
        for secret in self._store.list(SECRETS, "kube-system"):
            known = _data(secret) if secret.get("type") == _TYPE else {}
            if known and not self._is_over(known):
                signature = signed(kubeconfig, known["token-id"], known["token-secret"])
                data[f"jws-kubeconfig-{known['token-id']}"] = signature
        self._store.replace(CONFIG_MAPS, "kube-public", "cluster-info", {**found, "data": data})

    def _is_over(self, data: dict[str, str]) -> bool:
        end = calendar.timegm(time.strptime(data["expiration"], "%Y-%m-%dT%H:%M:%SZ"))
        return self._clock.seconds() >= end


def add_joining_rules(store: Store) -> None:
    """Create the permissions for joining with a token."""
    read = {**rule("get", "", "configmaps"), "resourceNames": ["cluster-info"]}
    name = "kubeadm:bootstrap-signer-clusterinfo"
    store.create(ROLES, "kube-public", {"metadata": {"name": name}, "rules": [read]})
    everybody = {"kind": "User", "apiGroup": _RBAC, "name": ANONYMOUS.name}
    store.create(ROLE_BINDINGS, "kube-public", _binding(name, name, everybody, "Role"))
    node_client = rule("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient")
    body = {"metadata": {"name": _NODE_CLIENT}, "rules": [node_client]}
    store.create(CLUSTER_ROLES, None, body)
    joining = {"kind": "Group", "apiGroup": _RBAC, "name": JOINING}
    for name, role in (
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper"),
        ("kubeadm:node-autoapprove-bootstrap", _NODE_CLIENT),
    ):
        store.create(CLUSTER_ROLE_BINDINGS, None, _binding(name, role, joining))


def signed(content: str, token_id: str, secret: str) -> str:
    """Return the detached signature of a text (cluster-bootstrap/token/jws)."""
    header = _url_base64(json.dumps({"alg": "HS256", "kid": token_id}).encode())
    message = f"{header}.{_url_base64(content.encode())}".encode()
    mac = hmac.new(secret.encode(), message, hashlib.sha256).digest()
    return f"{header}..{_url_base64(mac)}"


def _binding(name: str, role: str, subject: Object, kind: str = "ClusterRole") -> Object:
    return {
        "metadata": {"name": name},
        "subjects": [subject],
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
    }


def _data(secret: Object) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _url_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
