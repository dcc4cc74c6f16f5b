"""Reviews of tokens and of access, which are requested by creating an object.

``kubectl auth whoami``, ``kubectl auth can-i`` and the tunnel's server use them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.apiserver.attributes import Attributes
from tests.apiserver.authorization import Authorizer
from tests.apiserver.jwt import BadToken
from tests.apiserver.kinds import (
    SELF_SUBJECT_ACCESS_REVIEWS,
    SELF_SUBJECT_REVIEWS,
    SELF_SUBJECT_RULES_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
)
from tests.apiserver.tokens import ServiceAccountTokens
from tests.apiserver.users import node_of, user_info
from yurtlab.api import errors
from yurtlab.api.access import User
from yurtlab.api.objects import VirtualKind
from yurtlab.api.resources import Resource, Target
from yurtlab.api.store import Object

_ATTRIBUTES = ("verb", "group", "version", "resource", "subresource", "namespace", "name")


class Reviews:
    """Performs reviews with ``authorizer`` and ``tokens``."""

    def __init__(self, authorizer: Authorizer, tokens: ServiceAccountTokens) -> None:
        self._authorizer = authorizer
        self._tokens = tokens

    def virtual_kinds(self) -> dict[tuple[Resource, None], VirtualKind]:
        """Return the virtual kinds of the reviews; creating one may raise ``ApiError``."""
        answers: dict[Resource, Callable[[Object, User], Object]] = {
            SELF_SUBJECT_REVIEWS: self._self_review,
            TOKEN_REVIEWS: self._token_review,
            SELF_SUBJECT_ACCESS_REVIEWS: self._may_i,
            SUBJECT_ACCESS_REVIEWS: self._may_they,
            SELF_SUBJECT_RULES_REVIEWS: self._rules_review,
        }
        return {
            (kind, None): VirtualKind(kind, partial(_with_status, status))
            for kind, status in answers.items()
        }

    def _self_review(self, spec: Object, user: User) -> Object:
        return {"userInfo": user_info(user)}

    def _token_review(self, spec: Object, user: User) -> Object:
        token, audiences = spec.get("token", ""), spec.get("audiences", [])
        if not token:
            raise errors.bad_request("token is required for TokenReview in authentication")
        try:
            found = self._tokens.authenticate(token, audiences)
        except BadToken as error:
            return {"user": {}, "error": f"[invalid bearer token, {error}]"}
        answer: Object = {"authenticated": True, "user": user_info(found.user)}
        return {**answer, "audiences": list(found.audiences)}

    def _may_i(self, spec: Object, user: User) -> Object:
        causes = _check_attributes(spec)
        _refuse(SELF_SUBJECT_ACCESS_REVIEWS, causes)
        return self._may(spec, user)

    def _may_they(self, spec: Object, user: User) -> Object:
        causes = _check_attributes(spec)
        if not spec.get("user") and not spec.get("groups"):
            text = "at least one of user or group must be specified"
            causes.append(errors.invalid_value("spec.user", "", text))
        _refuse(SUBJECT_ACCESS_REVIEWS, causes)
        extra = {key.lower(): tuple(values) for key, values in spec.get("extra", {}).items()}
        groups = tuple(spec.get("groups", ()))
        return self._may(spec, User(spec.get("user", ""), groups, spec.get("uid", ""), extra))

    def _may(self, spec: Object, user: User) -> Object:
        decision = self._authorizer.authorize(user, _attributes(spec))
        answer: Object = {"allowed": decision.allowed}
        return {**answer, "reason": decision.reason} if decision.reason else answer

    def _rules_review(self, spec: Object, user: User) -> Object:
        namespace = spec.get("namespace", "")
        if not namespace:
            raise errors.bad_request("no namespace on request")
        rules = self._authorizer.rules_for(user, namespace)
        return {
            "resourceRules": [rule for rule in rules if "nonResourceURLs" not in rule],
            "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
            # The permissions of kubelets cannot be listed.
            "incomplete": node_of(user) is not None,
        }


def _with_status(
    status: Callable[[Object, User], Object], target: Target, review: Object, user: User
) -> Object:
    return {**review, "status": status(review.get("spec", {}), user)}


def _check_attributes(spec: Object) -> list[errors.Cause]:
    requested = [name for name in ("resourceAttributes", "nonResourceAttributes") if name in spec]
    if len(requested) == 2:
        text = "cannot be specified in combination with resourceAttributes"
        value = spec["nonResourceAttributes"]
        return [errors.invalid_value("spec.nonResourceAttributes", value, text)]
    if not requested:
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [errors.invalid_value("spec.resourceAttributes", None, text)]
    return []


def _attributes(spec: Object) -> Attributes:
    if "nonResourceAttributes" in spec:
        requested = spec["nonResourceAttributes"]
        # An empty path would mean a resource.
        return Attributes(requested.get("verb", ""), path=requested.get("path") or "/")
    requested = spec["resourceAttributes"]
    requirements = requested.get("fieldSelector", {}).get("requirements", ())
    fields = tuple(
        (one.get("key", ""), one["values"][0])
        for one in requirements
        if one.get("operator") == "In" and len(one.get("values", ())) == 1
    )
    values = {name: requested[name] for name in _ATTRIBUTES if name in requested}
    return Attributes(**{"verb": "", **values}, fields=fields)


def _refuse(kind: Resource, causes: list[errors.Cause]) -> None:
    if causes:
        raise errors.invalid(kind.group, kind.kind, "", causes)
