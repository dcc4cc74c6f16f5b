"""Authorization: each request is authorized here, and each decision can be recorded."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from tests.apiserver.attributes import Attributes
from tests.apiserver.node_authorizer import NodeAuthorizer
from tests.apiserver.rbac import Decision, RoleAuthorizer, Rule
from yurtlab.api.access import MASTERS, User
from yurtlab.api.store import Store

Audit = Callable[[User, Attributes, bool], object]
"""A callback for each request: the user, the attributes, and whether it was allowed."""


class Authorizer:
    """Authorizes by groups, for kubelets by their pods, and by roles, in this order."""

    _log = Logger()

    def __init__(self, store: Store, on_request: Audit | None = None) -> None:
        self._roles = RoleAuthorizer(store)
        self._nodes = NodeAuthorizer(store)
        self._on_request = on_request

    def authorize(self, user: User, attributes: Attributes) -> Decision:
        """Return whether ``user`` is allowed to do this, without recording it."""
        if MASTERS in user.groups:
            return Decision(True)
        reasons = []
        for authorizer in (self._nodes, self._roles):
            decision = authorizer.authorize(user, attributes)
            if decision.allowed:
                return decision
            if decision.reason:
                reasons.append(decision.reason)
        return Decision(False, "\n".join(reasons))

    def check(self, user: User, attributes: Attributes) -> None:
        """Allow a request of ``user``, or raise Forbidden; record it in both cases."""
        decision = self.authorize(user, attributes)
        self._record(user, attributes, decision.allowed)
        if not decision.allowed:
            refusal = attributes.refusal(user, decision.reason)
            self._log.info("refused: {refusal}", refusal=refusal)
            raise refusal

    def may_use_signer(self, user: User, verb: str, signer: str) -> bool:
        """Return whether ``user`` may ``approve`` or ``sign`` for a signer.

        A permission for ``DOMAIN/*`` suffices, too (IsAuthorizedForSignerName of Kubernetes).
        """
        exactly, in_general = (
            Attributes(verb, "certificates.k8s.io", "*", "signers", name=name)
            for name in (signer, f"{signer.partition('/')[0]}/*")
        )
        for attributes in (exactly, in_general):
            if self.authorize(user, attributes).allowed:
                self._record(user, attributes, True)
                return True
        self._record(user, exactly, False)
        return False

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
        """Return the rules that roles grant ``user`` in ``namespace``."""
        return self._roles.rules_for(user, namespace)

    def _record(self, user: User, attributes: Attributes, allowed: bool) -> None:
        if self._on_request is not None:
            self._on_request(user, attributes, allowed)
