"""The approver, with an API in memory."""

from __future__ import annotations

import heapq
from unittest import mock

from twisted.internet.defer import fail
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.fakes import FakeEvents, FakeKubeClient
from tests.logged import Logged
from tests.pki.signing_requests import (
    AGENT,
    BOUND_TO_POD,
    KUBELET,
    POD,
    SERVER,
    agent_request,
    node,
    request_pem,
    signing_request,
    template_request,
)
from yurttunnel.kube.errors import ApiUnreachable, Expired, NotAllowed
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS, NODES, PODS
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.pki.approval_decision import Reason
from yurttunnel.pki.approval_requests import Kind
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template
from yurttunnel.server.approver import (
    MAX_PAUSE,
    MAX_REVIEWS_PER_ROUND,
    METRICS,
    REVIEW_PERIOD,
    ApprovalCounters,
    Approver,
)


class ApproverTests(SynchronousTestCase):
    """Results for requests."""

    def setUp(self):
        """Start an approver in a cluster with one node."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.client = FakeKubeClient(self.clock)
        self.client.put(NODES, node())
        self.informers = Informers(self.clock, self.client)
        self.events = FakeEvents()
        self.counters = ApprovalCounters()
        self.approver = Approver(
            self.clock, self.client, self.informers, self.events, "kube-system", self.counters
        )
        self.informers.startService()
        self.approver.startService()
        self.addCleanup(self.close)
        self.lines = Logged(self, level=LogLevel.info)
        self.settle()

    def close(self):
        """Stop everything; no timer may remain."""
        if self.approver.running:
            self.stop()
        self.successResultOf(self.informers.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def stop(self):
        """Stop the approver, as on a server that loses the lead."""
        stopped = self.approver.stopService()
        if stopped is not None:
            self.successResultOf(stopped)

    def settle(self, seconds=0.0):
        """Run everything that is due, and its consequences."""
        self.clock.advance(seconds)
        for _ in range(20):
            self.clock.advance(0.05)

    def put(self, csr, name="csr-1"):
        """Create a request in the API."""
        self.client.put(CERTIFICATE_SIGNING_REQUESTS, {**csr, "metadata": {"name": name}})
        self.settle()

    def conditions(self, name="csr-1"):
        """Return the conditions of a request."""
        csr = self.client.look(CERTIFICATE_SIGNING_REQUESTS, name)
        return csr.get("status", {}).get("conditions", [])

    def approved(self, name="csr-1"):
        """Return whether a request is approved."""
        return [each["type"] for each in self.conditions(name)] == ["Approved"]

    def calls(self, *names):
        """Return the API calls for requests with these names."""
        return [call for call in self.client.calls if call[2] in names]

    def test_approves(self):
        """An entitled request is approved like by kubectl, and logged."""
        self.put(agent_request())
        [condition] = self.conditions()
        for time in (condition.pop("lastUpdateTime"), condition.pop("lastTransitionTime")):
            self.assertRegex(time, r"\A2027-01-15T08:00:0\dZ\Z")
        self.assertEqual(
            {
                "type": "Approved",
                "status": "True",
                "reason": "AutoApproved",
                "message": "The tunnel's approver: it is for the agent of node edge-1, requested"
                " by system:node:edge-1 for that node",
            },
            condition,
        )
        update = ("update", "certificatesigningrequests/approval", "csr-1")
        self.assertEqual(1, self.client.calls.count(update))
        self.assertEqual([], self.events.recorded)
        self.assertTrue(any("csr-1 is approved" in line for line in self.lines), self.lines)

    def test_kinds(self):
        """All three kinds of certificates are approved, and counted by kind."""
        self.put(template_request(serving_template(["x.test"]), SERVER), "serving")
        self.put(template_request(proxy_client_template(), SERVER), "proxy-client")
        self.put(agent_request(), "agent")
        for name in ("serving", "proxy-client", "agent"):
            self.assertTrue(self.approved(name), name)
        self.assertEqual({"serving": 1, "proxy-client": 1, "agent": 1}, self.counters.approved)

    def test_pod(self):
        """The pod of a bound token is looked up in the tunnel's namespace."""
        self.put(agent_request(AGENT, extra=BOUND_TO_POD), "before")
        self.assertFalse(self.approved("before"))
        stored = self.client.put(
            PODS, {**POD, "metadata": {**POD["metadata"], "namespace": "kube-system"}}
        )
        uid = stored["metadata"]["uid"]
        extra = {**BOUND_TO_POD, "authentication.kubernetes.io/pod-uid": [uid]}
        self.put(agent_request(AGENT, extra=extra), "after")
        self.assertTrue(self.approved("after"))

    def test_waiting_at_start(self):
        """Requests that are pending at the start are reviewed."""
        self.stop()
        self.put(agent_request(), "a")
        self.put(agent_request("system:node:edge-2"), "b")
        self.assertFalse(self.approved("a"))
        self.approver.startService()
        self.settle()
        self.assertTrue(self.approved("a"))
        self.assertEqual(["b"], [event[0]["metadata"]["name"] for event in self.events.recorded])

    def test_not_approved(self):
        """A request without entitlement is not approved: one event, one log line, one count."""
        self.put(agent_request("system:node:edge-2"))
        self.assertEqual([], self.conditions())
        [(involved, kind, reason, message)] = self.events.recorded
        self.assertEqual("csr-1", involved["metadata"]["name"])
        self.assertEqual(("Warning", "NotApproved"), (kind, reason))
        for words in (
            "'system:node:edge-2' requests the certificate of node edge-1",
            "kubectl certificate approve csr-1",
        ):
            self.assertIn(words, message)
        [line] = [line for line in self.lines if "csr-1" in line]
        self.assertIn("csr-1 is not approved: 'system:node:edge-2' requests", line)
        self.assertEqual({("agent", "requester"): 1}, self.counters.not_approved)

    def test_reported_once(self):
        """An unchanged decision is reported once, however many reviews there are."""
        self.put(agent_request(text="host=edge-1&ipv4=192.0.2.8"))
        before = len(self.calls("csr-1"))
        for _ in range(7):
            self.settle(REVIEW_PERIOD)
        self.assertEqual(before + 3, len(self.calls("csr-1")))
        self.assertEqual(1, len(self.events.recorded))
        self.assertEqual({("agent", "names"): 1}, self.counters.not_approved)

    def test_reviewed_after_a_defect(self):
        """A failed round is logged, and the next one comes on time."""
        self.put(agent_request(text="host=edge-1&ipv4=192.0.2.8"))
        before = len(self.calls("csr-1"))
        with mock.patch.object(heapq, "nsmallest", side_effect=ZeroDivisionError):
            self.settle(REVIEW_PERIOD)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.settle(REVIEW_PERIOD)
        self.assertEqual(before + 1, len(self.calls("csr-1")))

    def test_pauses(self):
        """A request is reviewed again after a minute, two, four and so on, up to a maximum."""
        self.put(agent_request(text="host=edge-1&ipv4=192.0.2.8"))
        rounds, before = [], len(self.calls("csr-1"))
        for number in range(1, 32 + MAX_PAUSE):
            self.clock.advance(REVIEW_PERIOD)
            if len(self.calls("csr-1")) > before:
                rounds.append(number)
                before += 1
        self.assertEqual([1, 3, 7, 15, 31, 31 + MAX_PAUSE], rounds)

    def many_not_approved(self, count):
        """Create requests that one kubelet has made for itself, with an address of others."""
        csr = agent_request(text="host=edge-1&ipv4=192.0.2.8")
        for number in range(count):
            body = {**csr, "metadata": {"name": f"foreign-{number}"}}
            self.client.put(CERTIFICATE_SIGNING_REQUESTS, body)
        self.settle()
        self.assertEqual(count, self.counters.not_approved["agent", "names"])
        self.client.calls.clear()

    def reviewed(self):
        """Return the names of the requests reviewed since the last call, in order."""
        plural = CERTIFICATE_SIGNING_REQUESTS.plural
        names = [name for verb, what, name in self.client.calls if (verb, what) == ("get", plural)]
        self.client.calls.clear()
        return names

    def test_many_not_approved(self):
        """The number of reviews in a round is limited, and each request has its turn."""
        self.many_not_approved(MAX_REVIEWS_PER_ROUND + 50)
        self.settle(REVIEW_PERIOD)
        first = self.reviewed()
        self.assertEqual(MAX_REVIEWS_PER_ROUND, len(first))
        self.settle(REVIEW_PERIOD)
        second = self.reviewed()
        self.assertEqual(50, len(second))
        self.assertEqual(MAX_REVIEWS_PER_ROUND + 50, len({*first, *second}))

    def test_new_request_is_reviewed_first(self):
        """A new request does not wait for repeated reviews."""
        self.many_not_approved(MAX_REVIEWS_PER_ROUND)
        self.client.hold()
        self.clock.advance(REVIEW_PERIOD)
        body = {**agent_request(), "metadata": {"name": "new"}}
        self.client.put(CERTIFICATE_SIGNING_REQUESTS, body)
        self.clock.advance(0)
        names = self.reviewed()
        self.assertIn("new", names)
        self.assertLess(len(names), 4)
        self.client.release()
        self.settle(1)
        self.assertTrue(self.approved("new"))

    def test_name_of_other_node(self):
        """The names that a node reports are looked up: that of another node is not granted."""
        reported = node("edge-1", ("Hostname", "edge-2"), ("InternalDNS", "edge-1.internal"))
        self.client.put(NODES, reported)
        self.client.put(NODES, node("edge-2"))
        self.put(agent_request(text="host=edge-1&host=edge-1.internal"), "own")
        self.put(agent_request(text="host=edge-1&host=edge-2"), "foreign")
        self.assertTrue(self.approved("own"))
        self.assertFalse(self.approved("foreign"))
        self.assertEqual({("agent", "other_node"): 1}, self.counters.not_approved)
        [(_, _, _, message)] = self.events.recorded
        self.assertIn("'edge-2' is the name of another node", message)
        self.client.remove(NODES, "edge-2")
        self.settle(REVIEW_PERIOD)
        self.assertTrue(self.approved("foreign"))

    def test_other_installation(self):
        """A request of servers in another namespace is counted and logged once, as info."""
        account = "system:serviceaccount:other:yurt-tunnel-server"
        self.put(template_request(serving_template(["x.test"]), account))
        for _ in range(3):
            self.settle(REVIEW_PERIOD)
        self.assertFalse(self.approved())
        self.assertEqual([], self.events.recorded)
        self.assertEqual({("serving", "other_installation"): 1}, self.counters.not_approved)
        [line] = [line for line in self.lines if "csr-1" in line]
        self.assertIn("csr-1 belongs to another installation", line)
        self.assertNotIn(LogLevel.warn, [each["log_level"] for each in self.lines.events])

    def test_final(self):
        """A final decision is not reviewed again."""
        self.put(agent_request("system:node:edge-2"))
        before = len(self.calls("csr-1"))
        self.settle(REVIEW_PERIOD)
        self.assertEqual(before, len(self.calls("csr-1")))

    def test_request_before_its_node(self):
        """A request that came before its node is approved once that exists."""
        self.put(agent_request("system:node:edge-3", "host=edge-3", "edge-3"))
        self.assertIn("no node edge-3", self.events.recorded[0][3])
        self.client.put(NODES, node("edge-3"))
        self.settle(REVIEW_PERIOD)
        self.assertTrue(self.approved())

    def test_others(self):
        """Requests for other purposes, and malformed ones, are not even fetched."""
        pem = request_pem([("O", "system:nodes"), ("CN", "system:node:edge-1")])
        self.put(signing_request(pem, KUBELET, "kubernetes.io/kubelet-serving"), "kubelet")
        self.put(signing_request(b"nonsense", KUBELET), "nonsense")
        self.put({"spec": None}, "broken")
        self.settle(REVIEW_PERIOD)
        self.assertEqual([], self.calls("kubelet", "nonsense", "broken"))
        self.assertEqual([], self.events.recorded)

    def test_decided(self):
        """A request decided by others is left unchanged."""
        for kind in ("Approved", "Denied", "Failed"):
            status = {"conditions": [{"type": kind, "status": "True"}]}
            self.put({**agent_request(), "status": status}, kind.lower())
        self.assertEqual([], self.calls("approved", "denied", "failed"))

    def test_decided_meanwhile(self):
        """A request that was decided during the review is left unchanged, too."""
        self.client.hold()
        self.put(agent_request())
        denied = {"conditions": [{"type": "Denied", "status": "True"}]}
        self.put({**agent_request(), "status": denied})
        self.client.release()
        self.settle(1)
        self.assertEqual(["Denied"], [each["type"] for each in self.conditions()])
        self.assertEqual(0, self.counters.approved.total())

    def test_changed_meanwhile(self):
        """A request that has changed during the review is reviewed again."""
        csr = agent_request()
        self.client.hold()
        self.put(csr)
        stored = self.client.look(CERTIFICATE_SIGNING_REQUESTS, "csr-1")
        stored["metadata"]["annotations"] = {"a": "b"}
        self.client.put(CERTIFICATE_SIGNING_REQUESTS, stored)
        self.client.release()
        self.settle(1)
        self.assertTrue(self.approved())
        self.assertEqual({"agent": 1}, self.counters.approved)
        self.assertEqual(0, self.counters.failures)

    def test_deleted_meanwhile(self):
        """A deleted request is forgotten."""
        self.client.hold()
        self.put(agent_request())
        self.client.remove(CERTIFICATE_SIGNING_REQUESTS, "csr-1")
        self.client.release()
        self.settle(1)
        self.assertEqual(0, self.counters.approved.total())
        self.assertEqual(0, self.counters.failures)
        self.assertIsNone(self.approver.problem())

    def test_not_permitted(self):
        """If the server may not approve, the rules missing from its role are named."""
        update = self.client.update
        text = "user not permitted to approve requests with signerName"
        error = NotAllowed(403, "Forbidden", text)
        self.client.update = lambda *arguments: fail(error)
        self.put(agent_request())
        problem = self.approver.problem()
        for words in (
            "certificate request csr-1 cannot be approved",
            "[signers] resourceNames [kubernetes.io/kubelet-serving, kubernetes.io/kube-apiserver-",
            "[certificatesigningrequests/approval] verbs [update]",
            text,
        ):
            self.assertIn(words, problem)
        self.assertGreater(self.counters.failures, 0)
        self.client.update = update
        self.settle(REVIEW_PERIOD)
        self.assertTrue(self.approved())
        self.assertIsNone(self.approver.problem())

    def test_unreachable(self):
        """While the API is unreachable that is reported, and afterwards it continues."""
        get = self.client.get
        self.client.get = lambda *arguments: fail(ApiUnreachable("10.96.0.1 does not answer"))
        self.put(agent_request())
        self.assertIn("csr-1 cannot be reviewed", self.approver.problem())
        self.assertIn("10.96.0.1 does not answer", self.approver.problem())
        self.client.get = get
        self.settle(REVIEW_PERIOD)
        self.assertTrue(self.approved())
        self.assertIsNone(self.approver.problem())

    def test_stop(self):
        """When another server leads, it does nothing, and reports no problem."""
        update = self.client.update
        self.client.update = lambda *arguments: fail(ApiUnreachable("no"))
        self.put(agent_request())
        self.assertIsNotNone(self.approver.problem())
        self.stop()
        self.client.update = update
        self.assertIsNone(self.approver.problem())
        self.put(agent_request(), "csr-2")
        self.settle(REVIEW_PERIOD)
        self.assertFalse(self.approved("csr-1"))
        self.assertFalse(self.approved("csr-2"))

    def test_stop_during_a_call(self):
        """Pending API calls end when it stops."""
        self.client.hold()
        self.put(agent_request())
        stopped = self.approver.stopService()
        self.client.release()
        self.settle()
        self.successResultOf(stopped)

    def test_deleted(self):
        """Nothing is stored of deleted requests."""
        self.put(agent_request("system:node:edge-2"))
        self.client.remove(CERTIFICATE_SIGNING_REQUESTS, "csr-1")
        self.settle()
        self.put(agent_request("system:node:edge-2"))
        self.assertEqual(2, len(self.events.recorded))

    def test_recreated_while_disconnected(self):
        """A request of the same name that a new list has in place of another is a new one."""
        self.put(agent_request("system:node:edge-2"))
        for watch in self.client.watches:
            watch.on_event = lambda *change: None
        self.client.remove(CERTIFICATE_SIGNING_REQUESTS, "csr-1")
        self.put(agent_request())
        self.assertFalse(self.approved())
        self.client.end_watches(Expired(410, "Expired", "too old resource version"))
        self.settle(1)
        self.assertTrue(self.approved())

    def test_nothing_is_stored_of_deleted(self):
        """Nothing is stored of a request that was deleted during its review."""
        self.client.hold()
        self.put(agent_request("system:node:edge-2"))
        self.client.remove(CERTIFICATE_SIGNING_REQUESTS, "csr-1")
        self.client.release()
        self.settle(1)
        self.assertEqual([], self.events.recorded)
        self.put(agent_request("system:node:edge-2"))
        self.assertEqual(1, len(self.events.recorded))

    def test_many(self):
        """Many concurrent requests are all approved, at the rate of the queue."""
        for number in range(150):
            self.client.put(
                CERTIFICATE_SIGNING_REQUESTS,
                {**agent_request(), "metadata": {"name": f"csr-{number}"}},
            )
        for _ in range(30):
            self.settle(1)
        self.assertEqual(150, self.counters.approved["agent"])

    def test_metrics(self):
        """The metrics have the decisions."""
        self.put(agent_request(), "a")
        self.put(agent_request("system:node:edge-2"), "b")
        text = self.scraped()
        for line in (
            'certificate_requests_approved_total{kind="agent"} 1\n',
            'certificate_requests_left_alone_total{kind="agent",reason="requester"} 1\n',
            "certificate_request_failures_total 0\n",
        ):
            self.assertIn(f"yurttunnel_server_{line}", text)

    def test_metrics_at_the_start(self):
        """Each series exists before its first request, because alerts use its increase."""
        text = self.scraped()
        for kind in Kind:
            self.assertIn(f'_requests_approved_total{{kind="{kind.value}"}} 0\n', text)
            for reason in Reason:
                labels = f'kind="{kind.value}",reason="{reason.value}"'
                self.assertIn(f"_requests_left_alone_total{{{labels}}} 0\n", text)

    def scraped(self) -> str:
        """Return the metrics."""
        registry = MetricRegistry()
        registry.add(METRICS, lambda: self.counters)
        return exposition(registry).decode()
