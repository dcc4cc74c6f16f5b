"""Impersonation: ``kubectl --as``.

Headers and permissions are those of Kubernetes (k8s.io/apiserver
pkg/endpoints/filters/impersonation.go).
"""

from __future__ import annotations

from urllib.parse import unquote

from tests.apiserver.attributes import Attributes
from tests.apiserver.authorization import Authorizer
from yurtlab.api import errors
from yurtlab.api.access import AUTHENTICATED, User
from yurttunnel.http.head import RequestHead

_AUTHENTICATION = "authentication.k8s.io"
_EXTRA = "impersonate-extra-"


def impersonated(head: RequestHead, user: User, authorizer: Authorizer) -> User:
    """Return the effective user of a request, usually ``user``; raise ``ApiError``.

    A permission is required for the name, for each group and for all other attributes.
    """
    name = b"".join(head.values(b"impersonate-user")).decode("latin-1")
    uid = b"".join(head.values(b"impersonate-uid")).decode("latin-1")
    groups = [value.decode("latin-1") for value in head.values(b"impersonate-group")]
    extra = _extra(head)
    if not name:
        if groups or extra or uid:
            text = "requested impersonation without impersonating a user"
            raise errors.ApiError(500, "InternalError", f"Internal error occurred: {text}")
        return user
    authorizer.check(user, _of_name(name))
    for group in groups:
        authorizer.check(user, _impersonate("groups", group))
    for key, values in extra.items():
        for value in values:
            authorizer.check(user, _impersonate("userextras", value, key, _AUTHENTICATION))
    if uid:
        authorizer.check(user, _impersonate("uids", uid, group=_AUTHENTICATION))
    if not groups:
        groups = _groups_of_account(name)
    if AUTHENTICATED not in groups:
        groups.append(AUTHENTICATED)
    return User(name, tuple(groups), uid, extra)


def _extra(head: RequestHead) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for field, value in head.fields:
        key = field.decode("latin-1").lower()
        if key.startswith(_EXTRA):
            key = unquote(key.removeprefix(_EXTRA))
            found[key] = (*found.get(key, ()), value.decode("latin-1"))
    return found


def _of_name(name: str) -> Attributes:
    match name.split(":"):
        case ["system", "serviceaccount", namespace, account]:
            return Attributes(
                "impersonate", "", "v1", "serviceaccounts", namespace=namespace, name=account
            )
    return _impersonate("users", name)


def _impersonate(resource: str, name: str, subresource: str = "", group: str = "") -> Attributes:
    return Attributes("impersonate", group, "v1", resource, subresource, name=name)


def _groups_of_account(name: str) -> list[str]:
    match name.split(":"):
        case ["system", "serviceaccount", namespace, _]:
            return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return []
