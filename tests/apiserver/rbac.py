"""Authorization by roles and bindings: rbac.authorization.k8s.io.

The rules are those of Kubernetes (plugin/pkg/auth/authorizer/rbac, pkg/apis/rbac/v1
evaluation_helpers.go and pkg/registry/rbac/validation/rule.go). Everything not granted is
denied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.apiserver.attributes import Attributes
from tests.apiserver.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    look_up,
)
from yurtlab.api.access import User
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object, Store

Rule = Object
"""A ``PolicyRule``."""

_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request is allowed, and the reason."""

    allowed: bool
    reason: str = ""


class RoleAuthorizer:
    """Authorizes by the roles and bindings in ``store``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def authorize(self, user: User, attributes: Attributes) -> Decision:
        """Return whether ``user`` is allowed to do this."""
        problems: list[str] = []
        for binding, subject in self._bindings(user, attributes.namespace):
            rules = self._rules(binding, problems)
            if any(allows(rule, attributes) for rule in rules):
                return Decision(True, f"RBAC: allowed by {_describe(binding, subject)}")
        if not problems:
            return Decision(False)
        text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        return Decision(False, f"RBAC: {text}")

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
        """Return the rules that apply to ``user`` in ``namespace``."""
        return [
            rule
            for binding, _ in self._bindings(user, namespace)
            for rule in self._rules(binding, [])
        ]

    def _bindings(self, user: User, namespace: str) -> Iterator[tuple[Object, Object]]:
        """Yield the bindings of ``user``, with the matching subject."""
        kinds: list[tuple[Resource, str | None]] = [(CLUSTER_ROLE_BINDINGS, None)]
        if namespace:
            kinds.append((ROLE_BINDINGS, namespace))
        for kind, where in kinds:
            for binding in self._store.view(kind, where):
                for subject in binding.get("subjects", ()):
                    if _matches_subject(subject, user, where or ""):
                        yield binding, subject
                        break

    def _rules(self, binding: Object, problems: list[str]) -> Sequence[Rule]:
        reference = binding["roleRef"]
        kind, where = CLUSTER_ROLES, None
        if reference.get("kind") == ROLES.kind:
            kind, where = ROLES, binding["metadata"].get("namespace")
        role = look_up(self._store, kind, where, reference.get("name", ""))
        if role is None:
            problems.append(f'{kind.singular}.{kind.group} "{reference.get("name", "")}" not found')
            return ()
        rules: Sequence[Rule] = role.get("rules", ())
        return rules


def allows(rule: Rule, attributes: Attributes) -> bool:
    """Return whether a rule grants this."""
    if not _matches(rule.get("verbs", ()), attributes.verb):
        return False
    if attributes.path:
        return any(_path_matches(url, attributes.path) for url in rule.get("nonResourceURLs", ()))
    names = rule.get("resourceNames", ())
    return (
        _matches(rule.get("apiGroups", ()), attributes.group)
        and any(_resource_matches(one, attributes) for one in rule.get("resources", ()))
        and (not names or attributes.name in names)
    )


def _matches(granted: Sequence[str], desired: str) -> bool:
    return "*" in granted or desired in granted


def _resource_matches(granted: str, attributes: Attributes) -> bool:
    if granted in ("*", attributes.full_resource):
        return True
    return bool(attributes.subresource) and granted == f"*/{attributes.subresource}"


def _path_matches(granted: str, path: str) -> bool:
    return granted in ("*", path) or (
        granted.endswith("*") and path.startswith(granted.rstrip("*"))
    )


def _matches_subject(subject: Object, user: User, namespace: str) -> bool:
    name = subject.get("name", "")
    match subject.get("kind"):
        case "User":
            return bool(user.name == name)
        case "Group":
            return name in user.groups
        case "ServiceAccount":
            its_namespace = subject.get("namespace") or namespace
            full_name = f"{_SERVICE_ACCOUNT_PREFIX}{its_namespace}:{name}"
            return bool(its_namespace) and user.name == full_name
    return False


def _describe(binding: Object, subject: Object) -> str:
    metadata, reference = binding["metadata"], binding["roleRef"]
    name, kind = metadata["name"], binding["kind"]
    if kind == ROLE_BINDINGS.kind:
        name = f"{name}/{metadata['namespace']}"
    whom = subject["name"]
    if subject["kind"] == "ServiceAccount":
        whom = f"{whom}/{subject.get('namespace') or metadata.get('namespace', '')}"
    return (
        f'{kind} "{name}" of {reference["kind"]} "{reference["name"]}"'
        f' to {subject["kind"]} "{whom}"'
    )
