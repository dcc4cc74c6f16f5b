"""Roles and bindings: defaults and validation (pkg/apis/rbac of Kubernetes)."""

from __future__ import annotations

from yurtlab.api.access import User
from yurtlab.api.errors import Cause, invalid_value, not_supported, required
from yurtlab.api.store import Object
from yurtlab.api.strategy import Strategy

_GROUP = "rbac.authorization.k8s.io"
_ACCOUNT = "ServiceAccount"


def path_segment(text: str) -> list[str]:
    """Check a name that must only be valid in a path: roles (IsValidPathSegmentName)."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    return [f"may not contain '{one}'" for one in "/%" if one in text]


class RoleStrategy(Strategy):
    """Roles; ``namespaced`` ones cannot grant access to paths."""

    name_rule = staticmethod(path_segment)

    def __init__(self, namespaced: bool) -> None:
        self._namespaced = namespaced

    def validate(self, body: Object) -> list[Cause]:
        """Return the errors in the rules of a new role."""
        return super().validate(body) + self._validate_rules(body)

    def validate_update(self, body: Object, current: Object) -> list[Cause]:
        """Return the errors in the rules of a changed role."""
        return super().validate_update(body, current) + self._validate_rules(body)

    def _validate_rules(self, body: Object) -> list[Cause]:
        causes = []
        for index, rule in enumerate(body.get("rules", ())):
            causes += self._validate_rule(rule, f"rules[{index}]")
        return causes

    def _validate_rule(self, rule: Object, path: str) -> list[Cause]:
        causes = []
        if not rule.get("verbs"):
            causes.append(required(f"{path}.verbs", "verbs must contain at least one value"))
        if urls := rule.get("nonResourceURLs"):
            text = ""
            if self._namespaced:
                text = "namespaced rules cannot apply to non-resource URLs"
            elif any(rule.get(key) for key in ("apiGroups", "resources", "resourceNames")):
                text = "rules cannot apply to both regular resources and non-resource URLs"
            if text:
                causes.append(invalid_value(f"{path}.nonResourceURLs", urls, text))
            return causes
        if not rule.get("apiGroups"):
            text = "resource rules must supply at least one api group"
            causes.append(required(f"{path}.apiGroups", text))
        if not rule.get("resources"):
            text = "resource rules must supply at least one resource"
            causes.append(required(f"{path}.resources", text))
        return causes


class BindingStrategy(Strategy):
    """Bindings; ``namespaced`` ones can also bind roles of their namespace."""

    name_rule = staticmethod(path_segment)

    def __init__(self, namespaced: bool) -> None:
        self._namespaced = namespaced

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Fill in groups."""
        body.setdefault("roleRef", {}).setdefault("apiGroup", _GROUP)
        for subject in body.get("subjects", ()):
            if subject.get("kind") != _ACCOUNT:
                subject.setdefault("apiGroup", _GROUP)

    def validate(self, body: Object) -> list[Cause]:
        """Return the errors in a new binding."""
        return super().validate(body) + self._validate(body)

    def prepare_for_update(self, body: Object, current: Object) -> None:
        """Fill in groups."""
        self.prepare_for_create(body)

    def validate_update(self, body: Object, current: Object) -> list[Cause]:
        """Reject a change of the role."""
        causes = super().validate_update(body, current) + self._validate(body)
        if body["roleRef"] != current["roleRef"]:
            causes.append(invalid_value("roleRef", body["roleRef"], "cannot change roleRef"))
        return causes

    def _validate(self, body: Object) -> list[Cause]:
        reference, causes = body["roleRef"], []
        if reference["apiGroup"] != _GROUP:
            causes.append(not_supported("roleRef.apiGroup", reference["apiGroup"], (_GROUP,)))
        kinds = ("Role", "ClusterRole") if self._namespaced else ("ClusterRole",)
        if reference.get("kind") not in kinds:
            causes.append(not_supported("roleRef.kind", reference.get("kind", ""), kinds))
        if not reference.get("name"):
            causes.append(required("roleRef.name"))
        for index, subject in enumerate(body.get("subjects", ())):
            causes += self._validate_subject(subject, f"subjects[{index}]")
        return causes

    def _validate_subject(self, subject: Object, path: str) -> list[Cause]:
        kind, group, causes = subject.get("kind", ""), subject.get("apiGroup", ""), []
        if not subject.get("name"):
            causes.append(required(f"{path}.name"))
        if kind == _ACCOUNT:
            if group:
                causes.append(not_supported(f"{path}.apiGroup", group, ("",)))
            if not self._namespaced and not subject.get("namespace"):
                causes.append(required(f"{path}.namespace"))
        elif kind in ("User", "Group"):
            if group != _GROUP:
                causes.append(not_supported(f"{path}.apiGroup", group, (_GROUP,)))
        else:
            causes.append(not_supported(f"{path}.kind", kind, (_ACCOUNT, "User", "Group")))
        return causes
