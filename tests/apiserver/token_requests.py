"""``serviceaccounts/NAME/token``: token requests of kubelets and ``kubectl create token``.

The rules are those of Kubernetes (pkg/registry/core/serviceaccount/storage/token.go and
pkg/apis/authentication/validation).
"""

from __future__ import annotations

from tests.apiserver.kinds import TOKEN_REQUESTS
from tests.apiserver.tokens import ISSUER, ServiceAccountTokens
from yurtlab.api import errors
from yurtlab.api.access import User
from yurtlab.api.resources import NODES, PODS, SECRETS, SERVICE_ACCOUNTS, Resource, Target
from yurtlab.api.store import Object, Store
from yurttunnel.ops.clocks import timestamp

DEFAULT_SECONDS = 3600
"""The default validity of a token in seconds."""

_MIN_SECONDS = 600
_MAX_SECONDS = 1 << 32

_BINDABLE = {kind.kind: kind for kind in (PODS, SECRETS, NODES)}


def answer_token_request(
    store: Store, tokens: ServiceAccountTokens, target: Target, request: Object, user: User
) -> Object:
    """Issue a token for ``request`` of ``user``; return the request with the token.

    Raises ``ApiError``.
    """
    assert target.name is not None
    account = store.get(SERVICE_ACCOUNTS, target.namespace, target.name)
    spec = {**request.get("spec", {})}
    seconds = spec.setdefault("expirationSeconds", DEFAULT_SECONDS)
    _validate(seconds)
    audiences = spec["audiences"] = spec.get("audiences") or [ISSUER]
    reference = spec.get("boundObjectRef")
    bound_to = None if reference is None else _bound(store, target, reference)
    token, end = tokens.issue(account, audiences, seconds, bound_to)
    metadata = account["metadata"]
    return {
        "metadata": {key: metadata[key] for key in ("name", "namespace")},
        "spec": spec,
        "status": {"token": token, "expirationTimestamp": timestamp(end)},
    }


def _validate(seconds: int) -> None:
    text = ""
    if seconds < _MIN_SECONDS:
        text = "may not specify a duration less than 10 minutes"
    elif seconds > _MAX_SECONDS:
        text = "may not specify a duration larger than 2^32 seconds"
    if text:
        cause = errors.invalid_value("spec.expirationSeconds", seconds, text)
        raise errors.invalid(TOKEN_REQUESTS.group, TOKEN_REQUESTS.kind, "", [cause])


def _bound(store: Store, target: Target, reference: Object) -> tuple[Resource, Object]:
    """Return the object to which the token is bound."""
    api_version, desired = reference.get("apiVersion", ""), reference.get("kind", "")
    kind = _BINDABLE.get(desired)
    if kind is None or api_version != kind.api_version:
        raise errors.bad_request(
            f"cannot bind token to object of type {api_version}, Kind={desired}"
        )
    name = reference.get("name", "")
    namespace = target.namespace if kind.namespaced else None
    found = store.get(kind, namespace, name)
    if kind is PODS:
        theirs = found["spec"].get("serviceAccountName", "")
        if theirs != target.name:
            raise errors.bad_request(
                f'cannot bind token for serviceaccount "{target.name}" to pod running with'
                f' different serviceaccount name "{theirs}".'
            )
    uid = found["metadata"]["uid"]
    if reference.get("uid") not in (None, "", uid):
        text = (
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in"
            f" record. The object might have been deleted and then recreated"
        )
        raise errors.conflict("", kind.kind, name, text)
    return kind, found
