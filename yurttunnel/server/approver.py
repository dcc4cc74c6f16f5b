"""The approver: approves the tunnel's certificate requests that their requesters may make."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger, LogLevel

from yurttunnel.kube.errors import ApiError, ApiUnreachable, Conflict, NotAllowed, NotFound
from yurttunnel.kube.events import EventRecorder
from yurttunnel.kube.interfaces import IInformers, IKubeClient, InformerSpec
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS, Object
from yurttunnel.kube.work_queue import WorkQueue
from yurttunnel.metrics import Metric, counter, counts_of
from yurttunnel.ops.clocks import time_of_day, timestamp
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.approval import agent_node, decide
from yurttunnel.pki.approval_decision import Decision, Facts, Reason
from yurttunnel.pki.approval_requests import (
    SIGNERS,
    Kind,
    Request,
    is_decided,
    is_for_tunnel,
    recognize,
)

REVIEW_PERIOD = 60.0
"""Seconds between two rounds, in which requests that were not approved are reviewed again."""

MAX_PAUSE = 30
"""The maximum number of rounds between two reviews of a request; each pause is twice as long."""

MAX_REVIEWS_PER_ROUND = 100
"""The maximum number of reviews in a round; everyone who may create requests can create many."""

_WORKERS = 2
_APPROVED = "AutoApproved"
_NOT_APPROVED = "NotApproved"


@dataclass(slots=True)
class ApprovalCounters:
    """Totals since the process started.

    Only the leader of all servers approves requests, so sums over the servers are totals.
    ``approved`` is by kind of certificate, ``not_approved`` by kind and reason; both are values of
    the rules' enumerations, so there are few. ``failures`` are attempts that are retried.
    """

    approved: Counter[str] = field(default_factory=Counter)
    not_approved: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: int = 0


METRICS: tuple[Metric[ApprovalCounters], ...] = (
    counter(
        "yurttunnel_server_certificate_requests_approved",
        "Certificate requests that this server has approved, by kind of certificate. Many for"
        " agents: agents lose their certificates (--cert-dir), or addresses of nodes change.",
        lambda counters: counts_of((kind.value for kind in Kind), counters.approved),
        "kind",
    ),
    counter(
        "yurttunnel_server_certificate_requests_left_alone",
        "Certificate requests of the tunnel that were not approved, by kind and reason. requester"
        " and unbound_token: a request for a certificate that does not belong to the requester,"
        " which may be an attack, as may other_node: a node reports the name of another node as"
        " its own. names: an agent claims more names than its node has. other_installation: a"
        " request of servers in another namespace, which their own approver handles; no action is"
        " needed. The others are mistakes. The Event on the request (kubectl describe csr) and the"
        " log have the requester, the subject and the remedy.",
        # All from the start: an attack may be one request, which ``increase`` misses in a new
        # series.
        lambda counters: (
            ((kind.value, reason.value), counters.not_approved[kind.value, reason.value])
            for kind in Kind
            for reason in Reason
        ),
        "kind",
        "reason",
    ),
    counter(
        "yurttunnel_server_certificate_request_failures",
        "Failed attempts to review or approve a certificate request, which are retried: the API"
        " was unreachable, or permission is missing; /readyz and the log have the reason.",
        lambda counters: counters.failures,
    ),
)


@dataclass(frozen=True, slots=True)
class _CachedRequest:
    """What is stored of a request: whether it is pending.

    A request that was deleted and recreated under the same name has another ``uid``.
    """

    name: str
    uid: str
    pending: bool


def _cached_request(csr: Object) -> _CachedRequest:
    """Store little: there may be thousands of requests, most of them from kubelets."""
    metadata = csr.get("metadata")
    name, uid = (
        (metadata.get("name"), metadata.get("uid")) if isinstance(metadata, dict) else (None, None)
    )
    return _CachedRequest(str(name), str(uid), not is_decided(csr) and is_for_tunnel(csr))


@dataclass(slots=True)
class _Unapproved:
    """The state of a request that was not approved.

    ``reported`` is the hash of the reported decision, which may be long. The request is reviewed
    again in round ``due`` if ``may_change`` is set, and then after twice ``pause`` rounds.
    """

    reported: int
    may_change: bool
    due: int
    pause: int = 1


REQUESTS = InformerSpec(CERTIFICATE_SIGNING_REQUESTS, _cached_request)
"""The approver's informer, also on servers that do not lead, so that a new leader is up to date."""


class Approver(MultiService):
    """Reviews each request of the tunnel, and approves it or reports why not.

    The leader runs it: it may be started and stopped any number of times. A request that is not
    approved is reported once for each reason, by an event, in the log and as a metric. If its
    result may change, it is reviewed again after one round, two, four and so on, by a separate
    worker, so that new requests do not wait.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        informers: IInformers,
        events: EventRecorder,
        namespace: str,
        counters: ApprovalCounters,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._client = client
        self._events = events
        self._facts = Facts(client, namespace)
        self._counters = counters
        self._requests = informers.informer(REQUESTS)
        self._queue = WorkQueue(clock, self._handle, _WORKERS)
        self._queue.setServiceParent(self)
        self._retry_queue = WorkQueue(clock, self._handle, 1)
        self._retry_queue.setServiceParent(self)
        what = "reviewing requests again that are not approved"
        Reconciler(clock, REVIEW_PERIOD, what, self._review_again).setServiceParent(self)
        self._unsubscribe: Callable[[], None] | None = None
        # By name, of existing requests only.
        self._unapproved: dict[str, _Unapproved] = {}
        self._round = 0
        self._problem = ""

    def startService(self) -> None:
        super().startService()
        self._unsubscribe = self._requests.add_handler(self._changed)

    def stopService(self) -> Deferred[Any]:
        """Stop; wait for current reviews, as long as the queue does."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._unapproved.clear()
        self._problem = ""
        stopped: Deferred[Any] = super().stopService()
        return stopped

    def problem(self) -> str | None:
        """Return why requests cannot be approved, on the leader."""
        return self._problem if self.running and self._problem else None

    def _changed(self, old: _CachedRequest | None, new: _CachedRequest | None) -> None:
        if new is None or not new.pending:
            cached = new or old
            if cached is not None:
                self._unapproved.pop(cached.name, None)
            return
        if old is not None and old.uid != new.uid:
            self._unapproved.pop(new.name, None)
        self._queue.add(new.name)

    async def _review_again(self) -> None:
        """Start a round; the requests with the fewest reviews come first."""
        self._round += 1
        due: list[tuple[int, int, str]] = []
        for cached in self._requests.values():
            unapproved = self._unapproved.get(cached.name)
            if cached.pending and unapproved is None:
                # It is in the queue or in its backoff, or there was no room for it.
                self._queue.add(cached.name)
            elif unapproved is not None and unapproved.may_change and unapproved.due <= self._round:
                due.append((unapproved.pause, unapproved.due, cached.name))
        for _, _, name in heapq.nsmallest(MAX_REVIEWS_PER_ROUND, due):
            unapproved = self._unapproved[name]
            unapproved.pause = min(2 * unapproved.pause, MAX_PAUSE)
            unapproved.due = self._round + unapproved.pause
            self._retry_queue.add(name)

    async def _handle(self, name: str) -> None:
        """Review a request; an exception has it retried."""
        try:
            await self._review(name)
        except (ApiError, ApiUnreachable) as error:
            self._counters.failures += 1
            self._problem = _problem(name, error)
            raise
        self._problem = ""

    async def _review(self, name: str) -> None:
        # The informer's copy may be older than a decision by somebody else.
        try:
            csr = await self._client.get(CERTIFICATE_SIGNING_REQUESTS, name)
        except NotFound:
            return
        request = None if is_decided(csr) else recognize(csr)
        if request is None:
            return
        decision = await decide(request, self._facts)
        if not decision.approved:
            self._report_unapproved(csr, request, decision)
            return
        try:
            await self._client.update(
                CERTIFICATE_SIGNING_REQUESTS, self._approval(csr, decision), "approval"
            )
        except NotFound:
            return
        except Conflict:
            # Somebody else was faster; the next review shows the result.
            self._queue.add(name)
            return
        self._counters.approved[request.kind.value] += 1
        self._log.info(
            "the certificate request {name} is approved: it {text}",
            name=name,
            node=agent_node(request),
            text=decision.message,
        )

    def _approval(self, csr: Object, decision: Decision) -> Object:
        """Return the approved request (``CertificateSigningRequestCondition``)."""
        now = timestamp(time_of_day(self._clock))
        condition = {
            "type": "Approved",
            "status": "True",
            "reason": _APPROVED,
            "message": f"The tunnel's approver: it {decision.message}",
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        }
        status = csr.get("status") or {}
        conditions = [*(status.get("conditions") or []), condition]
        return {**csr, "status": {**status, "conditions": conditions}}

    def _report_unapproved(self, csr: Object, request: Request, decision: Decision) -> None:
        name = request.name
        cached: _CachedRequest | None = self._requests.get(name)
        if cached is None or not cached.pending:
            # It was deleted or decided meanwhile.
            return
        if decision.reason is None or self._is_reported(name, decision):
            return
        self._counters.not_approved[request.kind.value, decision.reason.value] += 1
        level = LogLevel.warn if decision.is_alarming else LogLevel.info
        # A field named message would be interpreted as a legacy log message.
        line = "the certificate request {name} {text}"
        self._log.emit(level, line, name=name, node=agent_node(request), text=decision.message)
        if decision.is_alarming:
            more = f"To approve it nevertheless: kubectl certificate approve {name}"
            self._events.record(csr, "Warning", _NOT_APPROVED, f"{decision.message}. {more}")

    def _is_reported(self, name: str, decision: Decision) -> bool:
        """Return whether a decision was reported before, and record it as reported."""
        reported = hash(decision)
        unapproved = self._unapproved.get(name)
        if unapproved is None:
            self._unapproved[name] = _Unapproved(reported, decision.may_change, self._round + 1)
            return False
        was, unapproved.reported, unapproved.may_change = (
            unapproved.reported,
            reported,
            decision.may_change,
        )
        return was == reported


def _problem(name: str, error: ApiError | ApiUnreachable) -> str:
    if isinstance(error, NotAllowed) and error.status == 403:
        return (
            f"the certificate request {name} cannot be approved: the server's ClusterRole needs"
            " apiGroups [certificates.k8s.io] with resources [certificatesigningrequests] verbs"
            " [get, list, watch], resources [certificatesigningrequests/approval] verbs [update],"
            f" and resources [signers] resourceNames [{', '.join(SIGNERS)}] verbs [approve];"
            " in addition, create on subjectaccessreviews, get on nodes, on pods in its namespace"
            " and on the Service kubernetes in default"
            f" ({error})"
        )
    return f"the certificate request {name} cannot be reviewed or approved: {error}"
