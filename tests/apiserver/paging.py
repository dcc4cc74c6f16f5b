"""The versions and pages of lists.

A page has the version of the first one as long as the history includes it; then the error is
Expired, with a token that continues with the current version. These are rules of k8s.io/apiserver
(pkg/storage/etcd3/store.go, pkg/storage/continue.go) and of list options in k8s.io/apimachinery
(pkg/apis/meta/internalversion/validation).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from yurtlab.api import errors
from yurtlab.api.options import Query, first, number, selection
from yurtlab.api.resources import Resource, Target
from yurtlab.api.responses import Page
from yurtlab.api.store import Event, Object, Store

_TOKEN_VERSION = "meta.k8s.io/v1"
_LATEST = -1
"""The version in a token that continues with the current version."""

_EXACT, _NOT_OLDER = "Exact", "NotOlderThan"


@dataclass(frozen=True, slots=True)
class _Position:
    """The position in a list: its version, and the key of the previous object."""

    version: int
    after: str


def list_page(store: Store, target: Target, query: Query) -> Page:
    """Return the requested objects, or a page of them; raise ``ApiError``."""
    selector = selection(target.kind, query)
    text = first(query, "continue")
    position = _decode(text) if text else None
    version = _version(store, query, position)
    limit = number(query, "limit") or 0
    if limit < 0:
        raise errors.bad_request("limit must not be negative")
    if first(query, "resourceVersion") == "0" and position is None:
        # As the watch cache of kube-apiserver responds to this version.
        limit = 0
    found = _objects(store, target, version, position)
    selected = [one for one in found if selector(one)]
    metadata: dict[str, object] = {"resourceVersion": str(version)}
    page = selected[:limit] if limit else selected
    if len(page) < len(selected):
        metadata["continue"] = _encode(_Position(version, _key(page[-1])))
        if not first(query, "labelSelector") and not first(query, "fieldSelector"):
            metadata["remainingItemCount"] = len(selected) - len(page)
    return Page(page, metadata)


def _version(store: Store, query: Query, position: _Position | None) -> int:
    """Return the version of the list."""
    text, match = first(query, "resourceVersion"), first(query, "resourceVersionMatch")
    _check_match(text, match, position is not None)
    desired = number(query, "resourceVersion") or 0
    if position is not None:
        if desired:
            raise errors.bad_request(
                "specifying resource version is not allowed when using continue"
            )
        return store.version if position.version == _LATEST else position.version
    if desired > store.version:
        raise _too_large_version(desired, store.version)
    limited = bool(number(query, "limit"))
    return desired if desired and (match == _EXACT or (not match and limited)) else store.version


def _check_match(version: str, match: str, continued: bool) -> None:
    if not match:
        return
    field, cause = "resourceVersionMatch", None
    if continued:
        cause = errors.forbidden_field(field, "resourceVersionMatch is forbidden for continue")
    elif not version:
        text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        cause = errors.forbidden_field(field, text)
    elif match not in (_EXACT, _NOT_OLDER):
        cause = errors.not_supported(field, match, (_EXACT, _NOT_OLDER))
    elif match == _EXACT and version == "0":
        text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        cause = errors.forbidden_field(field, text)
    if cause is not None:
        raise errors.invalid("meta.k8s.io", "ListOptions", "", [cause])


def _objects(
    store: Store, target: Target, version: int, position: _Position | None
) -> list[Object]:
    try:
        found = as_it_was(store, target.kind, target.namespace, version)
    except errors.ApiError:
        if position is not None:
            raise _expired_continue(_encode(_Position(_LATEST, position.after))) from None
        message = "The resourceVersion for the provided list is too old."
        raise errors.expired(message) from None
    if position is None:
        return found
    return [one for one in found if _order(_key(one)) > _order(position.after)]


def as_it_was(store: Store, kind: Resource, namespace: str | None, version: int) -> list[Object]:
    """Return the objects at a version; raise Expired if it is no longer in the history."""
    later: list[Event] = []
    store.follow(kind, later.append, version)()
    objects = {_key(one): one for one in store.view(kind)}
    for event in reversed(later):
        if event.previous is None:
            del objects[_key(event.object)]
        else:
            objects[_key(event.object)] = event.previous
    return [
        objects[key]
        for key in sorted(objects, key=_order)
        if not namespace or _order(key)[0] == namespace
    ]


def _key(one: Object) -> str:
    metadata = one["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def _order(key: str) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return namespace, name


def _encode(position: _Position) -> str:
    token = {"v": _TOKEN_VERSION, "rv": position.version, "start": f"{position.after}\0"}
    data = json.dumps(token, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> _Position:
    try:
        padded = text + "=" * (-len(text) % 4)
        token = json.loads(base64.b64decode(padded.encode("ascii"), b"-_", validate=True))
        if token["v"] != _TOKEN_VERSION:
            raise ValueError
        version, start = token["rv"], token["start"]
        if not isinstance(version, int) or not isinstance(start, str) or version < _LATEST:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise errors.bad_request("invalid continue token: continue key is not valid") from None
    return _Position(version, start.removesuffix("\0"))


def _expired_continue(token: str) -> errors.ApiError:
    """Return the error that the list of a page has expired; ``token`` continues with another."""
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can"
        " start a new list without the continue parameter, or use the continue token in this"
        " response to retrieve the remainder of the results. Continuing with the provided token"
        " results in an inconsistent list - objects that were created, modified, or deleted"
        " between the time the first chunk was returned and now may show up in the list."
    )
    return errors.ApiError(410, "Expired", message, metadata={"continue": token})


def _too_large_version(desired: int, current: int) -> errors.ApiError:
    """Return the error that a version does not exist yet."""
    message = f"Timeout: Too large resource version: {desired}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return errors.ApiError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})
