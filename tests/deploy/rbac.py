"""Compares the permissions of Roles and ClusterRoles with their use: missing and superfluous ones.

No cluster is needed: the permissions are in rendered manifests, and the requests are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

GENERATED_NAMES = frozenset(
    {"certificatesigningrequests", "endpointslices", "events", "nodes", "pods"}
)
"""Resources with object names that a manifest cannot list."""

UNNAMED_VERBS = frozenset({"create", "deletecollection"})
"""Verbs for which ``resourceNames`` has no effect, since the request does not have the name."""


@dataclass(frozen=True, order=True, slots=True)
class Request:
    """A request to the API server, or to a kubelet that asks the API server for authorization.

    ``namespace`` is empty for cluster-scoped resources and for lists of all namespaces; ``name`` is
    empty if the request has none. A list or watch that selects ``metadata.name`` has that name.
    ``verb`` is the verb of Kubernetes (``get``, ``list``, ``create``...), not the HTTP method.
    """

    user: str
    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def checked_name(self) -> str:
        """The name for the permission check, which is empty for the creation of an object."""
        creates_object = self.verb in UNNAMED_VERBS and not self.subresource
        return "" if creates_object else self.name

    @property
    def path(self) -> str:
        """The resource with its subresource, as in rules."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        which = f" {self.name}" if self.name else ""
        return f"{self.user}: {self.verb} {self.path}.{self.group or 'core'}{which}{where}"


@dataclass(frozen=True, order=True, slots=True)
class Grant:
    """The smallest part of a rule: one verb, one resource, and one name or all (empty).

    ``namespace`` is empty for all namespaces. ``role`` names the role that has the rule.
    """

    role: str
    subject: str
    verb: str
    group: str
    path: str
    name: str
    namespace: str

    def allows(self, request: Request) -> bool:
        """Return whether the grant allows ``request``."""
        return (
            self.subject in _subjects_of(request.user)
            and self.verb in (request.verb, "*")
            and self.group in (request.group, "*")
            and self.path in (request.path, "*")
            and self.name in (request.checked_name, "")
            and self.namespace in (request.namespace, "")
        )

    def __str__(self) -> str:
        which = f" {self.name}" if self.name else ""
        where = f" in {self.namespace}" if self.namespace else ""
        what = f"{self.verb} {self.path}.{self.group or 'core'}{which}{where}"
        return f"{self.role} grants {self.subject}: {what}"


@dataclass(frozen=True, slots=True)
class Audit:
    """The differences: requests without permission, and descriptions of superfluous grants."""

    missing: tuple[Request, ...]
    superfluous: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*(f"missing: {each}" for each in self.missing), *self.superfluous])


def audit(
    objects: Iterable[Object], used: Iterable[Request], users: Iterable[str] | None = None
) -> Audit:
    """Compare the permissions in ``objects`` with the requests ``used``.

    ``users`` restricts the comparison to requests of these users and grants to them; by default all
    users are included. Grants that are too wide count as superfluous: a grant for all namespaces
    that is used in only one, and a grant for all names if every request has a name.
    """
    grants = list(grants_of(objects))
    requests = sorted(set(used))
    if users is not None:
        desired = set(users)
        requests = [request for request in requests if request.user in desired]
        subjects = {subject for user in desired for subject in _subjects_of(user)}
        grants = [grant for grant in grants if grant.subject in subjects]
    missing = [r for r in requests if not any(grant.allows(r) for grant in grants)]
    superfluous = []
    for grant in sorted(grants):
        served = [request for request in requests if grant.allows(request)]
        superfluous += _what_is_too_much(grant, served)
    return Audit(tuple(missing), tuple(superfluous))


def grants_of(objects: Iterable[Object]) -> Iterator[Grant]:
    """Yield the grants of all bindings in ``objects``.

    Raises ``LookupError`` if the role of a binding is not among them.
    """
    objects = list(objects)
    roles = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in objects
        if each["kind"] in ("Role", "ClusterRole")
    }
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        namespace = binding["metadata"].get("namespace", "")
        key = (kind, namespace if kind == "Role" else "", name)
        if key not in roles:
            raise LookupError(f"{binding['kind']} {binding['metadata']['name']}: no {kind} {name}")
        for subject in binding.get("subjects") or []:
            for rule in roles[key].get("rules") or []:
                yield from _grants(f"{kind} {name}", _name_of(subject), rule, namespace)


def _grants(role: str, subject: str, rule: Object, namespace: str) -> Iterator[Grant]:
    for group in rule.get("apiGroups", []):
        for path in rule.get("resources", []):
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or [""]:
                    yield Grant(role, subject, verb, group, path, name, namespace)


def _what_is_too_much(grant: Grant, served: list[Request]) -> Iterator[str]:
    if not served:
        yield f"superfluous: {grant}"
        return
    namespaces = {request.namespace for request in served}
    if not grant.namespace and "" not in namespaces and len(namespaces) == 1:
        yield f"too wide: {grant}, and it is used in {min(namespaces)} only"
    names = {request.name for request in served}
    nameable = grant.verb not in UNNAMED_VERBS
    nameable = nameable and grant.path.partition("/")[0] not in GENERATED_NAMES
    if not grant.name and nameable and "" not in names:
        yield f"too wide: {grant}, and it is used for {', '.join(sorted(names))} only"


def _name_of(subject: Object) -> str:
    if subject["kind"] == "ServiceAccount":
        return f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return f"group {subject['name']}" if subject["kind"] == "Group" else str(subject["name"])


def _subjects_of(user: str) -> Iterator[str]:
    """Yield the user, and the groups of every user of this kind."""
    yield user
    yield "group system:authenticated"
    parts = user.split(":")
    if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4:
        yield "group system:serviceaccounts"
        yield f"group system:serviceaccounts:{parts[2]}"
