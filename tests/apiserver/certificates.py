"""CertificateSigningRequests: their validation, and the permissions to approve and sign.

The rules are those of Kubernetes: pkg/registry/certificates/certificates/strategy.go,
pkg/apis/certificates/validation, and the admissions CertificateApproval, CertificateSigning,
CertificateSubjectRestriction and, for kubelets, NodeRestriction.
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from tests.apiserver.authorization import Authorizer
from tests.apiserver.certificate_validation import (
    common_names,
    organizations,
    parse_request,
    validate_certificate,
    validate_conditions,
    validate_request,
)
from tests.apiserver.kinds import CERTIFICATE_SIGNING_REQUESTS
from tests.apiserver.roles import path_segment
from tests.apiserver.users import node_of, user_info
from yurtlab.api import errors
from yurtlab.api.access import MASTERS, User
from yurtlab.api.errors import Cause, forbidden_field
from yurtlab.api.store import Object
from yurtlab.api.strategy import Strategy
from yurttunnel.ops.clocks import timestamp

CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING = "kubernetes.io/kubelet-serving"
"""The signers of Kubernetes for clients, kubelets as clients, and kubelets as servers."""

_DECISIONS = ("Approved", "Denied")
_REQUESTER = ("username", "uid", "groups", "extra")


class CertificateRequestStrategy(Strategy):
    """The strategy of CertificateSigningRequests; ``clock`` is the time of conditions."""

    name_rule = staticmethod(path_segment)

    def __init__(self, clock: IReactorTime, authorizer: Authorizer) -> None:
        self._clock = clock
        self._authorizer = authorizer

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Set the requester; a client can set neither that nor the status."""
        spec = body.setdefault("spec", {})
        for field in _REQUESTER:
            spec.pop(field, None)
        spec.update({} if user is None else user_info(user))
        body["status"] = {}

    def validate(self, body: Object) -> list[Cause]:
        """Check the request itself."""
        return super().validate(body) + validate_request(body["spec"])

    def admit(self, body: Object, user: User) -> None:
        """Reject requests that are forbidden for all signers."""
        spec = body["spec"]
        signer, request = spec["signerName"], parse_request(spec["request"])
        if signer == CLIENT and MASTERS in organizations(request):
            raise _forbidden(body, f"use of {CLIENT} signer with {MASTERS} group is not allowed")
        of_kubelet = node_of(user) is not None and signer in (KUBELET_CLIENT, KUBELET_SERVING)
        if of_kubelet and common_names(request) != [user.name]:
            raise _forbidden(body, f"can only create a node CSR with CN={user.name}")

    def prepare_for_update(self, body: Object, current: Object) -> None:
        """Keep the specification, which is immutable."""
        body["spec"] = current["spec"]

    def prepare_subresource(self, subresource: str, body: Object, current: Object) -> None:
        """Keep the fields of other subresources: approvals and certificates are separate."""
        before, status = current.get("status", {}), body.setdefault("status", {})
        if subresource == "approval":
            status.pop("certificate", None)
            if "certificate" in before:
                status["certificate"] = before["certificate"]
        else:
            _keep_decisions(status, before)
        _set_times(status, before, timestamp(self._clock.seconds()))
        if not status.get("conditions"):
            status.pop("conditions", None)

    def validate_subresource(self, subresource: str, body: Object, current: Object) -> list[Cause]:
        """Check conditions and certificate, which cannot be removed."""
        before, status = current.get("status", {}), body["status"]
        causes = validate_conditions(status.get("conditions", []))
        if status.get("certificate") != before.get("certificate"):
            causes += validate_certificate(status.get("certificate", ""))
        for each in (*_DECISIONS, "Failed"):
            if len(_of_type(status, each)) < len(_of_type(before, each)):
                text = f'updates may not remove a condition of type "{each}"'
                causes.append(forbidden_field("status.conditions", text))
        if subresource == "status":
            causes += _check_decisions(before, status)
            if before.get("certificate") and before["certificate"] != status.get("certificate"):
                text = "updates may not modify existing certificate content"
                causes.append(forbidden_field("status.certificate", text))
        return causes

    def admit_subresource(
        self, subresource: str, body: Object, current: Object, user: User
    ) -> None:
        """Require the permission to approve, or to sign, for the signer."""
        verb = "approve" if subresource == "approval" else "sign"
        if verb == "sign" and body.get("status", {}) == current.get("status", {}):
            return
        signer = current["spec"]["signerName"]
        if not self._authorizer.may_use_signer(user, verb, signer):
            text = f'user not permitted to {verb} requests with signerName "{signer}"'
            raise _forbidden(current, text)


def _forbidden(body: Object, text: str) -> errors.ApiError:
    kind, metadata = CERTIFICATE_SIGNING_REQUESTS, body["metadata"]
    name = metadata.get("name") or metadata.get("generateName", "")
    return errors.forbidden(kind.group, kind.plural, name, text)


def _of_type(status: Object, desired: str) -> list[Object]:
    return [one for one in status.get("conditions", ()) if one.get("type") == desired]


def _keep_decisions(status: Object, before: Object) -> None:
    """Keep existing decisions unless their number differs, which is rejected later."""
    for each in _DECISIONS:
        ours, theirs = _of_type(before, each), _of_type(status, each)
        if len(ours) == len(theirs):
            for one, kept in zip(theirs, ours, strict=True):
                one.clear()
                one.update(kept)


def _check_decisions(before: Object, status: Object) -> list[Cause]:
    """Reject decisions by a signer."""
    return [
        forbidden_field("status.conditions", f'updates may not add a condition of type "{each}"')
        for each in _DECISIONS
        if len(_of_type(status, each)) > len(_of_type(before, each))
    ]


def _set_times(status: Object, before: Object, now: str) -> None:
    """Set the times of updates and transitions of conditions (populateConditionTimestamps)."""
    for condition in status.get("conditions", ()):
        known = [
            one
            for one in before.get("conditions", ())
            if (one.get("type"), one.get("status"))
            == (condition.get("type"), condition.get("status"))
        ]
        condition.setdefault("lastUpdateTime", now)
        since = known[0].get("lastTransitionTime", now) if known else now
        condition.setdefault("lastTransitionTime", since)
