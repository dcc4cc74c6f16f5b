"""The audit log of requests to kubelets."""

from __future__ import annotations

import json

from tests.fakes import Recorder
from tests.server.frontends.kubelet import test_listeners
from tests.server.frontends.kubelet.test_authorization import ALLOWED, AuthorizedWorld
from tests.server.frontends.kubelet.world import RESPONSE_TIMEOUT, World
from yurttunnel.server.audit import Audit
from yurttunnel.server.audit_requests import subject_of
from yurttunnel.server.frontends.kubelet.listeners import Interception
from yurttunnel.wire.codes import Code

PROMETHEUS = "system:serviceaccount:monitoring:prometheus"
UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}


class Audited(World):
    """An interception with an audit log."""

    def setUp(self):
        """Write requests into the audit log."""
        super().setUp()
        self.audited = []
        self.interception.close()
        self.interception = Interception(
            self.reactor,
            self.registry,
            self.contexts,
            self.next_middlewares(),
            RESPONSE_TIMEOUT,
            self.settings,
            audit=Audit(self.clock, self.audited.append),
        )
        self.stats = self.interception.stats
        self.counters = self.stats().counters

    def next_middlewares(self):
        """Return the middlewares."""
        return ()

    def entry(self, **expected):
        """Check the latest line, of one for each request, and return it."""
        entry = json.loads(self.audited[-1])
        self.assertEqual({key: entry.get(key) for key in expected}, expected)
        return entry

    def upgraded(self, caller, early=b""):
        """Run a command as ``caller``; return the other end in the kubelet."""
        far = Recorder()
        self.kubelet.answer = lambda exchange: exchange.switch(
            101, b"", [(b"Connection", b"Upgrade"), (b"Upgrade", b"SPDY/3.1")], far
        )
        target = "/exec/default/web/nginx?command=mysql&command=-pS3CRET"
        self.send_request(caller, target, "GET", early, **UPGRADE)
        self.assertIn(b"HTTP/1.1 101 ", caller.received)
        return far


class RequestTests(Audited):
    """Requests that reach the kubelet, and others."""

    def test_complete_record(self):
        """Each request of a connection has its own line, although the kubelet's is reused."""
        caller = self.dial()
        self.send_request(caller, X_Request_Id="abc-1")
        self.send_request(
            caller, "/stats/summary?only_cpu_and_memory=true", "POST", b"", Content_Length=0
        )
        self.assertEqual(len(self.connected), 1)
        first, second = map(json.loads, self.audited)
        address = first.pop("peer")
        self.assertTrue(first.pop("time").endswith("Z"))
        self.assertEqual(first.pop("duration"), 0)
        self.assertEqual(
            first,
            {
                "kind": "request",
                "request_id": "abc-1",
                "who": ALLOWED,
                "by": "certificate",
                "node": "edge-1",
                "destination": "edge-1:10250",
                "method": "GET",
                "path": "metrics",
                "upgraded": False,
                "status": 200,
                "result": "ended",
                "code": "done",
                "reason": "",
                "bytes_from_caller": 0,
                "bytes_to_caller": 9,
            },
        )
        self.assertEqual((second["path"], second["peer"]), ("stats", address))

    def test_insecure_port(self):
        """On that port callers are identified by their address only."""
        self.send_request(self.dial_insecurely())
        entry = self.entry(by="address")
        self.assertEqual(entry["who"], entry["peer"])

    def test_body(self):
        """The request's body counts, without its framing, and so does one after 100 Continue."""

        class Sink:
            def __init__(self, exchange):
                self.finish = lambda trailers=(): exchange.respond(200, [], b"thanks")

            def write(self, data):
                """Drop it."""

        self.kubelet.answer = lambda exchange: exchange.deliver_body(Sink(exchange))
        caller = self.dial()
        chunks = b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
        self.send_request(caller, "/run/a/b/c", "POST", chunks, Transfer_Encoding="chunked")
        self.entry(bytes_from_caller=7, bytes_to_caller=6, path="run", status=200)
        self.send_request(caller, "/run/a/b/c", "POST", b"12345", Content_Length=5)
        self.entry(bytes_from_caller=5)

    def test_upgrade(self):
        """Bytes are counted both ways, including early ones; the command is not logged."""
        caller = self.dial()
        far = self.upgraded(caller, b"early")
        far.transport.write(b"from the kubelet")
        caller.transport.write(b" and more")
        self.settle()
        self.assertEqual((far.received, self.audited), (b"early and more", []))
        self.clock.advance(3)
        caller.transport.loseConnection()
        self.settle()
        self.entry(
            path="exec",
            namespace="default",
            pod="web",
            container="nginx",
            status=101,
            upgraded=True,
            result="ended",
            code="done",
            bytes_from_caller=14,
            bytes_to_caller=16,
            duration=3.0,
        )
        self.assertNotIn(b"S3CRET", self.audited[0])
        self.assertNotIn(b"mysql", self.audited[0])

    def test_upgrade_ends_with_the_session(self):
        """The code is that of the lost node, not the end that the caller sees."""
        caller = self.dial()
        self.upgraded(caller)
        self.pair.server.close(Code.REVOKED, "the certificate is revoked")
        self.settle()
        self.entry(result="ended", code="revoked", reason="the certificate is revoked")

    def test_upgrade_ends_with_the_caller(self):
        """A broken connection of the caller is distinguished from a regular end."""
        self.serve_kubelet(None)
        self.upgraded(self.dial_insecurely())
        self.links[-1].cut()
        self.settle()
        entry = self.entry(code="connection_lost")
        self.assertIn("reset by peer", entry["reason"])

    def test_caller_leaves(self):
        """A request without a caller is canceled."""
        self.kubelet.answer = lambda exchange: None
        caller = self.dial()
        self.send_request(caller)
        caller.transport.loseConnection()
        self.settle()
        self.entry(result="ended", code="cancelled", status=0, upgraded=False)

    def test_answer_breaks_off(self):
        """An incomplete response is not DONE, whatever its status."""

        def half(exchange):
            exchange.send_head(200, [(b"Content-Length", b"100")])
            exchange.write(b"12345")
            self.clock.callLater(0.5, exchange.abort)

        self.kubelet.answer = half
        self.send_request(self.dial())
        self.pass_time(1)
        self.entry(status=200, code="connection_lost", bytes_to_caller=5)

    def test_not_connected(self):
        """Rejected requests are recorded with caller and target, too."""
        self.send_request(self.dial(), Host="nobody:10250")
        entry = self.entry(
            result="refused",
            code=None,
            status=503,
            who=ALLOWED,
            node="nobody",
            destination="nobody:10250",
            bytes_to_caller=0,
        )
        self.assertIn("no agent is connected for nobody", entry["reason"])

    def test_not_reached(self):
        """An unreachable kubelet is an error of this server."""
        self.pair.acceptor.answer = lambda request: request.fail(Code.REFUSED, "nobody listens")
        self.send_request(self.dial())
        entry = self.entry(result="refused", status=502, node="edge-1")
        self.assertIn("nobody listens", entry["reason"])

    def test_bad_destination(self):
        """A malformed destination is not logged as one; the reason has it."""
        self.send_request(self.dial(), X_Tunnel_Proxy_Dest="a b")
        self.entry(result="refused", status=400, node="", destination="", path="metrics")

    def test_no_answer(self):
        """A kubelet that does not respond in time."""
        self.kubelet.answer = lambda exchange: None
        self.send_request(self.dial())
        self.pass_time(RESPONSE_TIMEOUT + 1)
        entry = self.entry(result="refused", status=504, bytes_from_caller=0)
        self.assertIn("no response within", entry["reason"])

    def test_no_answer_to_a_body(self):
        """The bytes sent to a kubelet without a response count: it may have acted on them."""
        self.kubelet.answer = lambda exchange: None
        self.send_request(self.dial(), "/run/a/b/c", "POST", b"12345", Content_Length=5)
        self.pass_time(RESPONSE_TIMEOUT + 1)
        self.entry(result="refused", status=504, bytes_from_caller=5, bytes_to_caller=0)

    def test_malformed_bodies(self):
        """Responses of the port itself are rejections, also after a valid head."""
        for body, status, reason in (
            (b"zz\r\n", 400, "the size of a chunk is not a plain hexadecimal number"),
            (b"1\r\n", 408, "the request body did not arrive in time"),
        ):
            self.kubelet.answer = lambda exchange: None
            self.send_request(self.dial(), "/run/a/b/c", "POST", body, Transfer_Encoding="chunked")
            self.pass_time(21)
            self.entry(result="refused", code=None, status=status, reason=reason)


class AbortedResponseTests(Audited):
    """A middleware that aborts a response that has begun."""

    def next_middlewares(self):
        """Return it; it behaves like a relay whose kubelet stops reading a body."""

        class Aborting:
            def wrap(self, handler):
                """Begin to respond, and fail."""

                def begin_and_abort(request):
                    request.exchange.send_head(200, [(b"Content-Length", b"5")])
                    request.exchange.fail(504, "nothing was read")

                return begin_and_abort

        return (Aborting(),)

    def test_aborted(self):
        """The line has the code and the reason of an abort, not those of a caller that leaves."""
        self.send_request(self.dial())
        self.entry(result="ended", code="connection_lost", status=200, reason="nothing was read")


class DefectTests(Audited):
    """A middleware that raises."""

    def next_middlewares(self):
        """Return it."""

        class Raising:
            def wrap(self, handler):
                """Raise."""
                return lambda request: 1 / 0

        return (Raising(),)

    def test_defect(self):
        """The request is rejected, and not recorded as one with a node's response."""
        self.send_request(self.dial())
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        entry = self.entry(result="refused", code=None, status=500)
        self.assertIn("internal error", entry["reason"])


class TwistedTLSTests(RequestTests):
    """``RequestTests`` over Twisted's own TLS."""

    direct = False

    def test_upgrade_ends_with_the_session(self):
        """Twisted's TLS does not report why the stream below it has ended."""
        self.upgraded(self.dial())
        self.pair.server.close(Code.REVOKED, "the certificate is revoked")
        self.settle()
        self.entry(result="ended", code="connection_lost")


class SameRequestsTests(Audited, test_listeners.RequestTests):
    """The requests of the listeners' tests have the same results with an audit log."""


class CallerTests(Audited, AuthorizedWorld):
    """Identities of callers, in a cluster."""

    def next_middlewares(self):
        """Use reviews of the Kubernetes API."""
        return [self.authorization, self.passed]

    def setUp(self):
        """Let the API know one token."""
        super().setUp()
        self.api.tokens["S3CRET-good"] = PROMETHEUS
        self.api.rules.add((PROMETHEUS, "get", "metrics", "edge-1"))

    def send_with_token(self, token, target="/metrics"):
        """Make a request without a certificate."""
        self.send_request(self.dial_anonymously(), target, Authorization=f"Bearer {token}")
        self.assertNotIn(token.encode(), self.audited[-1])

    def test_token(self):
        """The user is the one from the API; the token is nowhere."""
        self.send_with_token("S3CRET-good")
        entry = self.entry(who=PROMETHEUS, by="token", result="ended", status=200)
        self.assertNotEqual(entry["peer"], PROMETHEUS)

    def test_token_that_is_denied(self):
        """The reason is that of the response."""
        self.send_with_token("S3CRET-good", "/pods")
        entry = self.entry(who=PROMETHEUS, by="token", result="refused", status=403, node="edge-1")
        self.assertIn("may not get nodes/pods of node edge-1", entry["reason"])

    def test_unknown_token(self):
        """An unauthenticated caller has no name."""
        self.send_with_token("S3CRET-bad")
        entry = self.entry(by="address", result="refused", status=401)
        self.assertIn("does not accept the bearer token", entry["reason"])

    def test_certificate(self):
        """A user's certificate has its name, denied or not."""
        self.send_request(self.user("alice"))
        self.entry(who="alice", by="certificate", result="refused", status=403)

    def test_hostile_certificate(self):
        """A name of any characters stays within its line."""
        self.send_request(self.user('alice"\n{"who": "kube-apiserver"}'))
        self.assertEqual(self.audited[0].count(b"\n"), 1)
        self.entry(who='alice"\n{"who": "kube-apiserver"}')


class SubjectTests(World):
    """The recorded parts of a path."""

    def subject(self, target, *expected):
        """Check the path class and the subject."""
        self.assertEqual(tuple(subject_of(target.encode("latin-1")).values()), expected)

    def test_paths(self):
        """Namespace, pod and container if present, otherwise the first segment."""
        for target, *expected in (
            ("/exec/ns/pod/box?command=sh", "exec", "ns", "pod", "box"),
            ("/exec/ns/pod/7d3f-uid/box", "exec", "ns", "pod", "box"),
            ("/attach/ns/pod/box", "attach", "ns", "pod", "box"),
            ("/run/ns/pod/box?cmd=S3CRET", "run", "ns", "pod", "box"),
            ("/containerLogs/ns/pod/box?follow=1", "containerLogs", "ns", "pod", "box"),
            ("/checkpoint/ns/pod/box", "checkpoint", "ns", "pod", "box"),
            ("/portForward/ns/pod", "portForward", "ns", "pod"),
            ("/portForward/ns/pod/7d3f-uid", "portForward", "ns", "pod"),
            ("/exec/ns", "exec"),
            ("/metrics/cadvisor", "metrics"),
            ("/stats/summary", "stats"),
            ("/cri/exec/T0KEN", "cri"),
            ("/cri%2Fexec%2FT0KEN", "cri"),
            ("/%65xec/ns/p%6fd/box", "exec", "ns", "pod", "box"),
            ("/", ""),
            ("/a%0Ab%FF\xff", "other"),
            ("*", "other"),
        ):
            self.subject(target, *expected)

    def test_long_path(self):
        """Only the beginning of a long path is parsed, and none of it recorded."""
        self.subject("/" + "x" * 500_000, "other")
        self.subject(f"/exec/{'n' * 254}/{'p' * 253}/box", "exec", "other", "p" * 253, "box")

    def test_queries_in_paths(self):
        """Queries that callers have mistakenly put into the path are not recorded."""
        for target, *expected in (
            ("/%3fcommand=S3CRET", "other"),
            ("/run;cmd=S3CRET", "other"),
            ("/run&cmd=S3CRET/ns/pod/box", "other"),
            ("/run/ns/pod/box%3Fcmd=S3CRET", "run", "ns", "pod", "other"),
            ("/run/ns/pod;cmd=S3CRET/box", "run", "ns", "other", "box"),
            ("/portForward/ns/pod&port=1", "portForward", "ns", "other"),
            ("http://user:S3CRET@edge-1/exec/ns/pod/box", "other"),
        ):
            self.subject(target, *expected)
