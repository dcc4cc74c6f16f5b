"""The attributes of requests, as in rules of authorization.

They are derived from a request by the rules of k8s.io/apiserver
(pkg/endpoints/request/requestinfo.go); the text of a rejection is that of
pkg/endpoints/handlers/responsewriters/errors.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from yurtlab.api.access import User
from yurtlab.api.errors import ApiError, forbidden
from yurtlab.api.options import Query, first, flag
from yurtlab.api.resources import NAMESPACES, Target
from yurttunnel.kube.selectors import BadSelector, field_terms

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of a request for objects of a kind, or for ``path``, a non-resource URL.

    ``fields`` are the requirements of a field selector, as pairs of name and value.
    """

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def full_resource(self) -> str:
        """The kind with its subresource, as in rules: ``pods/log``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def refusal(self, user: User, reason: str = "") -> ApiError:
        """Return the error that ``user`` is not allowed to do this."""
        text = f'User "{user.name}" cannot {self.verb} {self._object()}'
        if reason:
            text += f": {reason}"
        if self.path:
            return ApiError(403, "Forbidden", f"forbidden: {text}", {})
        return forbidden(self.group, self.resource, self.name, text)

    def _object(self) -> str:
        if self.path:
            return f'path "{self.path}"'
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return f'resource "{self.full_resource}" in API group "{self.group}" {where}'


def request_attributes(
    method: str, path: str, query: Query, target: Target | None = None
) -> Attributes:
    """Return the attributes of a request; ``target`` is the object of its path, if it is served."""
    if target is not None:
        return _of_target(method, target, query)
    return _of_path(method, path, query)


def _of_target(method: str, target: Target, query: Query) -> Attributes:
    kind = target.kind
    name, namespace = target.name or "", target.namespace or ""
    if kind is NAMESPACES:
        namespace = name
    return _complete(
        method,
        query,
        (kind.group, kind.version, kind.plural),
        (namespace, name, target.subresource or ""),
    )


def _of_path(method: str, path: str, query: Query) -> Attributes:
    parts = [unquote(part) for part in path.strip("/").split("/")]
    match parts:
        case ["api", version, first_part, *rest]:
            group = ""
        case ["apis", group, version, first_part, *rest]:
            pass
        case _:
            return Attributes(method.lower(), path=unquote(path))
    parts, namespace = [first_part, *rest], ""
    if first_part == "namespaces" and rest:
        namespace = rest[0]
        if len(rest) > 1 and rest[1] not in _NAMESPACE_SUBRESOURCES:
            parts = rest[1:]
    resource, name, subresource = (*parts, "", "")[:3]
    return _complete(method, query, (group, version, resource), (namespace, name, subresource))


def _complete(
    method: str, query: Query, kind: tuple[str, str, str], place: tuple[str, str, str]
) -> Attributes:
    namespace, name, subresource = place
    verb = _VERBS.get(method, method.lower())
    fields: Sequence[tuple[str, str]] = ()
    if not name and verb in ("get", "delete"):
        fields = _required_fields(first(query, "fieldSelector"))
        if verb == "delete":
            verb = "deletecollection"
        else:
            # A list of one object by its name counts as a request for it, as in resourceNames.
            name = next((value for field, value in fields if field == "metadata.name"), "")
            verb = "watch" if flag(query, "watch") else "list"
    return Attributes(verb, *kind, subresource, namespace, name, fields=tuple(fields))


def _required_fields(text: str) -> list[tuple[str, str]]:
    """Return the fields that a selector requires to have one value; none if it is invalid."""
    try:
        return [(field, value) for field, same, value in field_terms(text) if same]
    except BadSelector:
        return []
