"""Tokens of service accounts, bound to an audience, a time and usually a pod.

Claims and checks are those of Kubernetes (pkg/serviceaccount/claims.go); a token is invalid after
the end of its account, or of the object to which it is bound.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IReactorTime

from tests.apiserver.jwt import BadToken, Claims, TokenSigner
from tests.apiserver.kinds import look_up
from yurtlab.api.access import AUTHENTICATED, User
from yurtlab.api.resources import NODES, PODS, SECRETS, SERVICE_ACCOUNTS, Resource
from yurtlab.api.store import Object, Store
from yurttunnel.pki.credentials import PrivateKey

ISSUER = "https://kubernetes.default.svc.cluster.local"
"""The issuer of tokens, and the audience of those for the API itself."""

LEEWAY = 60.0
"""The tolerated difference of clocks in seconds (jwt.DefaultLeeway of go-jose)."""

_CLAIM = "kubernetes.io"
_EXTRA = "authentication.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The user of a token, and the requested audiences that it has."""

    user: User
    audiences: tuple[str, ...]


class ServiceAccountTokens:
    """Issues tokens for the accounts in ``store``, and authenticates them."""

    def __init__(self, clock: IReactorTime, store: Store, key: PrivateKey) -> None:
        self._clock = clock
        self._store = store
        self._signer = TokenSigner(key)

    def issue(
        self,
        account: Object,
        audiences: Sequence[str],
        seconds: int,
        bound_to: tuple[Resource, Object] | None = None,
    ) -> tuple[str, float]:
        """Issue a token that is valid for ``seconds``.

        Return it and its expiry, in seconds since 1970.
        """
        metadata, now = account["metadata"], int(self._clock.seconds())
        private: Claims = {
            "namespace": metadata["namespace"],
            "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
        }
        if bound_to is not None:
            kind, bound = bound_to
            private[kind.singular] = _reference(bound)
            if kind is PODS and (node := bound["spec"].get("nodeName")):
                private["node"] = self._node_reference(node)
        claims = {
            "aud": list(audiences),
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            _CLAIM: private,
            "nbf": now,
            "sub": _user_name(metadata["namespace"], metadata["name"]),
        }
        return self._signer.sign(claims), now + seconds

    def authenticate(self, token: str, audiences: Sequence[str] = ()) -> Authenticated:
        """Return the user of a token, for one of ``audiences``, by default for the API.

        Raises :class:`BadToken`.
        """
        claims = self._signer.read(token)
        try:
            return self._authenticate(claims, audiences or (ISSUER,))
        except (KeyError, TypeError, AttributeError):
            # Claims that this key has signed are valid, unless the key is also used elsewhere.
            raise BadToken("it is not a token of a service account") from None

    def _authenticate(self, claims: Claims, audiences: Sequence[str]) -> Authenticated:
        now = self._clock.seconds()
        if claims["iss"] != ISSUER:
            raise BadToken("its issuer is another")
        if now > claims["exp"] + LEEWAY:
            raise BadToken("service account token has expired")
        if now < claims["nbf"] - LEEWAY:
            raise BadToken("service account token is not valid yet")
        matching = tuple(one for one in audiences if one in claims["aud"])
        if not matching:
            raise BadToken(
                f"token audiences {_quoted(claims['aud'])} is invalid for the target audiences"
                f" {_quoted(audiences)}"
            )
        private = claims[_CLAIM]
        self._check_still_there(private)
        return Authenticated(_user(private, claims["jti"]), matching)

    def _check_still_there(self, private: Claims) -> None:
        namespace, account = private["namespace"], private["serviceaccount"]
        found = look_up(self._store, SERVICE_ACCOUNTS, namespace, account["name"])
        if found is None:
            raise BadToken(f'serviceaccounts "{account["name"]}" not found')
        uid = found["metadata"]["uid"]
        if uid != account["uid"]:
            raise BadToken(f"service account UID ({uid}) does not match claim ({account['uid']})")
        for kind in (PODS, SECRETS):
            bound = private.get(kind.singular)
            if bound is not None and self._is_gone(kind, namespace, bound):
                raise BadToken("service account token has been invalidated")
        # The node of a pod is only reported; a node to which the token is bound must exist.
        node = None if PODS.singular in private else private.get(NODES.singular)
        if node is not None and self._is_gone(NODES, None, node):
            raise BadToken("service account token has been invalidated")

    def _is_gone(self, kind: Resource, namespace: str | None, bound: Claims) -> bool:
        found = look_up(self._store, kind, namespace, bound["name"])
        return found is None or found["metadata"]["uid"] != bound["uid"]

    def _node_reference(self, name: str) -> Claims:
        node = look_up(self._store, NODES, None, name)
        return {"name": name} if node is None else _reference(node)


def _reference(one: Object) -> Claims:
    return {"name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}


def _user_name(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


def _user(private: Claims, token_id: str) -> User:
    namespace, account = private["namespace"], private["serviceaccount"]
    extra = {f"{_EXTRA}credential-id": (f"JTI={token_id}",)}
    for kind in (NODES, PODS):
        bound: dict[str, Any] = private.get(kind.singular, {})
        for key in ("name", "uid"):
            if key in bound:
                extra[f"{_EXTRA}{kind.singular}-{key}"] = (bound[key],)
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(_user_name(namespace, account["name"]), groups, account["uid"], extra)


def _quoted(texts: Sequence[str]) -> str:
    return "[" + " ".join(f'"{text}"' for text in texts) + "]"
