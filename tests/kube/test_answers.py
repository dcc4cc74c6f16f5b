"""The client's requests and its handling of responses, with a server that the test plays."""

from __future__ import annotations

import json
from dataclasses import replace

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.protocol import Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.kube.network import Network
from tests.logged import Logged
from yurttunnel.kube import responses
from yurttunnel.kube.client import CALL_SECONDS, MAX_IDLE, KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import Credentials, CredentialsUnavailable
from yurttunnel.kube.endpoints import host_field
from yurttunnel.kube.errors import (
    ApiError,
    ApiUnreachable,
    Conflict,
    Expired,
    NotAllowed,
    NotFound,
    WatchInterrupted,
)
from yurttunnel.kube.pages import FIRST_PAGE, PAGE_BYTES
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, PODS, TOKEN_REVIEWS

SECRET = "a-secret-token"


class BodyTests(SynchronousTestCase):
    """Collecting a body."""

    def test_bound(self):
        """A body of the limit is accepted, and one byte more is not."""
        body, other = responses.Body(3), responses.Body(3)
        body.take(b"ab")
        body.take(b"c")
        self.assertEqual(b"abc", body.whole())
        self.assertRaises(ApiUnreachable, other.take, b"abcd")


class Conversation(Protocol):
    """The server's end of a connection, which the test reads and writes."""

    def __init__(self):
        self.received = b""

    def dataReceived(self, data):
        """Store the data."""
        self.received += data


class Source:
    """Credentials that the test changes; ``forgotten`` are the rejected tokens."""

    def __init__(self):
        self.token = SECRET
        self.error = None
        self.forgotten = []
        self.after = None

    def current(self, reactor):
        """Return the credentials."""
        return succeed(Credentials(self.token)) if self.error is None else fail(self.error)

    def forget(self, refused):
        """Record the rejection, and change the token."""
        self.forgotten.append(refused.token)
        self.token = self.after or self.token


class AnswersTestCase(SynchronousTestCase):
    """A client, and the test as its server."""

    def setUp(self):
        """Connect them."""
        self.clock = MemoryReactorClock()
        self.conversations = []
        self.network = Network(self.clock, self.accept)
        self.source = Source()
        self.configuration = KubeConfiguration(
            "http://api:8001/prefix", "default", lambda: b"", self.source
        )
        self.client = KubeClient(self.clock, self.configuration, self.network)
        self.addCleanup(self.stop)

    def stop(self):
        """Close, and assert that nothing is left."""
        closing = self.client.close()
        self.network.settle()
        self.successResultOf(closing)
        self.assertEqual([], self.clock.getDelayedCalls())

    def accept(self):
        """Accept a connection."""
        self.conversations.append(Conversation())
        return MemoryConnection(self.clock).open(self.conversations[-1])

    @property
    def server(self):
        """The newest connection."""
        return self.conversations[-1]

    def requests(self, asked=None):
        """Return the requests of the newest connection since the last call."""
        self.network.settle()
        received, self.server.received = self.server.received, b""
        return received.decode()

    def answer(self, status, body, *fields, complete=True, to=None):
        """Respond with JSON or bytes, by default on the newest connection."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = len(data) if complete else len(data) + 1
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {length}", *fields, "", ""]
        self.network.settle()
        (to or self.server).transport.write("\r\n".join(lines).encode() + data)
        self.network.settle()

    def get(self):
        """Request an object."""
        return self.client.get(NODES, "n1")

    def status(self, code, reason, message="no", **more):
        """Create a ``Status``."""
        return {"kind": "Status", "code": code, "reason": reason, "message": message, **more}


class RequestTests(AnswersTestCase):
    """Requests."""

    def test_get(self):
        """A request has a path and the token, and accepts JSON."""
        asked = self.get()
        text = self.requests()
        self.assertTrue(text.startswith("GET /prefix/api/v1/nodes/n1 HTTP/1.1\r\n"), text)
        for field in (
            f"Authorization: Bearer {SECRET}",
            "Accept: application/json",
            "User-Agent: yurttunnel/",
            "Host: api:8001",
        ):
            self.assertIn(f"\r\n{field}", text)
        self.answer(200, {"kind": "Node"})
        self.assertEqual({"kind": "Node"}, self.successResultOf(asked))

    def test_program(self):
        """``User-Agent`` identifies the program."""
        self.client = KubeClient(self.clock, self.configuration, self.network, program="yurthub")
        asked = self.get()
        self.assertIn("\r\nUser-Agent: yurthub/", self.requests())
        self.answer(200, {"kind": "Node"})
        self.successResultOf(asked)

    def test_create(self):
        """A body is JSON, with version and kind."""
        asked = self.client.create(TOKEN_REVIEWS, {"spec": {"token": "x"}})
        text = self.requests()
        self.assertIn("POST /prefix/apis/authentication.k8s.io/v1/tokenreviews HTTP/1.1", text)
        self.assertIn("\r\nContent-Type: application/json\r\n", text)
        body = json.loads(text.partition("\r\n\r\n")[2])
        expected = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
        self.assertEqual({**expected, "spec": {"token": "x"}}, body)
        self.answer(201, body)
        self.successResultOf(asked)

    def test_watch(self):
        """A watch has bookmarks, a version and a timeout; selectors are escaped."""
        asked = self.client.watch(
            PODS,
            lambda *event: None,
            "shop",
            label_selector="a in (b,c)",
            field_selector="spec.nodeName=n 1",
            resource_version="77",
            timeout=300.4,
        )
        self.assertIn(
            "GET /prefix/api/v1/namespaces/shop/pods?watch=true&allowWatchBookmarks=true"
            "&resourceVersion=77&timeoutSeconds=300&labelSelector=a+in+%28b%2Cc%29"
            "&fieldSelector=spec.nodeName%3Dn+1 HTTP/1.1",
            self.requests(),
        )
        asked.cancel()
        self.failureResultOf(asked, CancelledError)

    def test_connection_is_kept(self):
        """Connections are reused, and closed when they have been idle for a minute."""
        for _ in range(3):
            asked = self.get()
            self.answer(200, {})
            self.successResultOf(asked)
        self.assertEqual(1, len(self.conversations))
        self.clock.advance(61)
        self.network.settle()
        self.assertIsNotNone(self.server.transport.closed_with)

    def test_a_lost_connection_takes_the_others_along(self):
        """A restart of the API fails one call that changes something, not one per connection.

        Such a call is not retried, since its effect is unknown.
        """
        body = {"metadata": {"name": "n1"}}
        both = [self.client.create(NODES, body) for _ in range(2)]
        for conversation in self.conversations:
            self.answer(201, {}, to=conversation)
        for asked in both:
            self.successResultOf(asked)
        asked = self.client.create(NODES, body)
        self.network.settle()
        [used] = [each for each in self.conversations if each.received.count(b"POST") == 2]
        used.transport.loseConnection()
        self.network.settle()
        self.failureResultOf(asked, ApiUnreachable)
        asked = self.client.create(NODES, body)
        self.answer(201, {})
        self.successResultOf(asked)
        self.assertEqual(3, len(self.conversations))

    def test_a_kept_connection_that_the_api_has_closed(self):
        """A read or a delete is retried on a new connection, but only once."""
        for ask in (self.get, lambda: self.client.delete(NODES, "n1")):
            asked = ask()
            self.answer(200, {})
            self.successResultOf(asked)
            asked = ask()
            for _ in range(2):
                self.network.settle()
                self.assertNoResult(asked)
                self.server.transport.loseConnection()
            self.network.settle()
            error = self.failureResultOf(asked, ApiUnreachable).value
            self.assertIn("closed before a response arrived", str(error))

    def test_some_connections_are_kept(self):
        """Of the connections of concurrent calls, the most recently used are kept."""
        asked = [self.get() for _ in range(MAX_IDLE + 2)]
        for conversation in self.conversations:
            self.answer(200, {}, to=conversation)
        for each in asked:
            self.successResultOf(each)
        open_still = [each.transport.closed_with is None for each in self.conversations]
        self.assertEqual([False] * 2 + [True] * MAX_IDLE, open_still)

    def test_host(self):
        """Host is that of the URL without the user; a name that is not ASCII is in IDNA."""
        for url, expected in (
            ("https://api", "api"),
            ("https://api:443/x", "api:443"),
            ("https://[fd00::1]", "[fd00::1]"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
            ("https://somebody:secret@b\xfccher.example:6443", "xn--bcher-kva.example:6443"),
            ("https://" + "a" * 63 + ":6443", "a" * 63 + ":6443"),
        ):
            self.assertEqual(expected.encode(), host_field(url))

    def test_a_name_that_cannot_be(self):
        """An invalid name is an error."""
        configuration = replace(self.configuration, host="http://a..b:8001")
        client = KubeClient(self.clock, configuration, self.network)
        error = self.failureResultOf(client.get(NODES, "n1"), ApiUnreachable).value
        self.assertIn("cannot be queried", str(error))

    def test_a_name_that_idna_refuses(self):
        """The error for a name that IDNA rejects quotes it and does not blame certificates."""
        for host, server_name, bad in (
            ("my_master", "", "my_master"),
            ("api", "my_master", "my_master"),
            ("a" * 64, "", "a" * 64),
        ):
            configuration = replace(
                self.configuration, host=f"https://{host}:6443", tls_server_name=server_name
            )
            client = KubeClient(self.clock, configuration, self.network)
            error = self.failureResultOf(client.get(NODES, "n1"), ApiUnreachable).value
            self.assertRegex(str(error), f"'{bad}' cannot be the name of an API: .")
            self.assertNotIn("client certificate", str(error))
            self.successResultOf(client.close())

    def test_no_token(self):
        """Without a token none is sent."""
        self.source.token = ""
        asked = self.get()
        self.assertNotIn("Authorization", self.requests())
        self.answer(200, {})
        self.successResultOf(asked)

    def test_token_is_not_logged(self):
        """No log and no error contains the token, whatever fails."""
        logged = Logged(self)
        errors = []
        for answer in (b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", b"garbage\r\n\r\n", b""):
            asked = self.get()
            self.network.settle()
            self.server.transport.write(answer)
            self.server.transport.loseConnection()
            self.network.settle()
            errors.append(self.failureResultOf(asked).value)
        self.flushLoggedErrors()
        self.assertNotIn(SECRET, repr(errors) + "".join(map(str, errors)) + repr(logged.events))
        self.assertNotIn(SECRET, repr(Credentials(SECRET)))


class ErrorTests(AnswersTestCase):
    """Errors, and invalid responses."""

    def refused(self, status, body, kind, *fields):
        """Respond to a call, which must fail."""
        asked = self.get()
        self.answer(status, body, *fields)
        return self.failureResultOf(asked, kind).value

    def test_statuses(self):
        """A ``Status`` is raised as the class of its reason, with its text."""
        for code, reason, kind in (
            (403, "Forbidden", NotAllowed),
            (404, "NotFound", NotFound),
            (409, "Conflict", Conflict),
            (410, "Gone", Expired),
            (422, "Invalid", ApiError),
            (500, "InternalError", ApiError),
        ):
            error = self.refused(code, self.status(code, reason, "a\n b"), kind)
            self.assertEqual((code, reason, "a b"), (error.status, error.reason, error.message))
            self.assertIsNone(error.retry_after)

    def test_retry_after(self):
        """The retry time is read from the header field or the ``Status``."""
        error = self.refused(429, self.status(429, "TooManyRequests"), ApiError, "Retry-After: 7")
        self.assertEqual(7, error.retry_after)
        details = {"retryAfterSeconds": 3}
        body = self.status(504, "Timeout", details=details)
        self.assertEqual(3, self.refused(504, body, ApiError).retry_after)
        for wrong in ("soon", "nan", "-1", "Wed, 21 Oct 2015 07:28:00 GMT"):
            error = self.refused(503, {}, ApiError, f"Retry-After: {wrong}")
            self.assertIsNone(error.retry_after)
        body = self.status(429, "TooManyRequests", details={"retryAfterSeconds": 10**400})
        self.assertIsNone(self.refused(429, body, ApiError).retry_after)

    def test_errors_of_others(self):
        """The error of an intermediary contains the beginning of its text."""
        error = self.refused(502, b"<h1>Bad\nGateway</h1>" + b"x" * 1000, ApiError)
        self.assertTrue(error.message.startswith("<h1>Bad Gateway</h1>xxx"))
        self.assertLess(len(error.message), 400)
        no_reason = b'{"kind": "Status", "reason": 7, "details": []}'
        for body in (b"", b"[]", b"null", no_reason, b"[" * 100_000):
            self.refused(500, body, ApiError)

    def test_redirect(self):
        """A redirect is not followed, since the token would be sent to another host."""
        error = self.refused(302, b"", ApiUnreachable, "Location: http://other/")
        self.assertIn("302", str(error))
        self.assertEqual(1, len(self.conversations))

    def test_no_object(self):
        """A response that is not a JSON object is an error."""
        for body in (b"", b"{", b"[]", b"\xff", b"[" * 100_000):
            error = self.refused(200, body, ApiUnreachable)
            self.assertIn("GET http://api:8001/prefix/api/v1/nodes/n1: the answer is", str(error))

    def test_cut_off(self):
        """A truncated response is an error."""
        asked = self.get()
        self.answer(200, {}, complete=False)
        self.server.transport.loseConnection()
        self.network.settle()
        error = self.failureResultOf(asked, ApiUnreachable).value
        self.assertIn("the response is incomplete", str(error))

    def test_too_big(self):
        """A response over the limit is discarded, and its connection is closed."""
        self.patch(responses.Body.__init__, "__defaults__", (1000,))
        error = self.refused(200, b"x" * 1001, ApiUnreachable)
        self.assertIn("more than 1000 bytes", str(error))
        self.assertIsNotNone(self.server.transport.closed_with)

    def test_no_connection(self):
        """Without a connection, the error contains the request, the address and the reason."""
        self.network.refusing = True
        error = self.failureResultOf(self.get(), ApiUnreachable).value
        self.assertIn("GET http://api:8001/prefix/api/v1/nodes/n1: ", str(error))
        self.assertIn("refused", str(error))

    def test_deadline(self):
        """A call times out unless head and body arrive in time."""
        for begun in (False, True):
            asked = self.get()
            if begun:
                self.answer(200, {}, complete=False)
            self.clock.advance(CALL_SECONDS - 1)
            self.assertNoResult(asked)
            self.clock.advance(1)
            error = self.failureResultOf(asked, ApiUnreachable).value
            self.assertIn("no answer within 30 s", str(error))
            self.network.settle()
            self.assertIsNotNone(self.server.transport.closed_with)

    def test_cancelled(self):
        """A cancelled call closes its connection, in its head or its body."""
        for begun in (False, True):
            asked = self.get()
            if begun:
                self.answer(200, {}, complete=False)
            asked.cancel()
            self.failureResultOf(asked, CancelledError)
            self.network.settle()
            self.assertIsNotNone(self.server.transport.closed_with)

    def test_a_token_that_cannot_be_sent(self):
        """A token of two lines is an error, which does not contain it."""
        self.source.token = f"{SECRET}\nx"
        error = self.failureResultOf(self.get(), ApiUnreachable).value
        self.assertIn("cannot be queried: the value of Authorization has control", str(error))
        self.assertNotIn(SECRET, str(error))
        self.assertEqual([], self.conversations)

    def test_no_credentials(self):
        """Without credentials no request is made, and the reason is the error."""
        for self.source.error in (CredentialsUnavailable("no plugin"), OSError(2, "no file")):
            error = self.failureResultOf(self.get(), ApiUnreachable).value
            self.assertIn("no ", str(error))
        self.assertEqual([], self.conversations)


class ClosedTests(AnswersTestCase):
    """A closed client."""

    def close(self):
        """Close the client, and transfer all data."""
        closing = self.client.close()
        self.network.settle()
        self.successResultOf(closing)

    def ended(self, asked):
        """Assert that a call fails as unanswered, and opens no other connection."""
        self.failureResultOf(asked, ApiUnreachable)
        self.assertEqual(1, len(self.conversations))
        self.assertIsNotNone(self.server.transport.closed_with)

    def test_while_calls_wait(self):
        """Calls in progress fail, on a new or a reused connection, in the head or the body."""
        for kept in (False, True):
            for begun in (False, True):
                self.setUp()
                if kept:
                    first = self.get()
                    self.answer(200, {})
                    self.successResultOf(first)
                asked = self.get()
                self.network.settle()
                if begun:
                    self.answer(200, {}, complete=False)
                self.close()
                self.ended(asked)

    def test_while_a_watch_goes_on(self):
        """A watch ends as if it had lost its connection."""
        asked = self.client.watch(NODES, lambda *event: None, resource_version="1", timeout=9)
        self.answer(200, b"", complete=False)
        self.close()
        self.ended(asked)

    def test_while_it_connects(self):
        """Connecting is aborted, and the call does not fail as cancelled by its caller."""
        connecting = Deferred()
        self.patch(self.network, "connect", lambda factory: connecting)
        asked = self.get()
        self.close()
        self.failureResultOf(asked, ApiUnreachable)
        self.assertTrue(connecting.called)

    def test_later(self):
        """No further connection is made."""
        self.close()
        error = self.failureResultOf(self.get(), ApiUnreachable).value
        self.assertIn("has been closed", str(error))
        self.assertEqual([], self.conversations)


class UnauthorizedTests(AnswersTestCase):
    """Responses with 401."""

    def unauthorized(self):
        """Respond with 401."""
        self.answer(401, self.status(401, "Unauthorized", "Unauthorized"))

    def test_renewed(self):
        """The credentials are renewed and the call is retried, on a new connection."""
        self.source.after = "another"
        asked = self.client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, "default")
        self.unauthorized()
        text = self.requests()
        self.assertIn("Bearer another", text)
        self.assertIn('"name":"a"', text)
        self.answer(201, {"ok": True})
        self.assertEqual({"ok": True}, self.successResultOf(asked))
        self.assertEqual(([SECRET], 2), (self.source.forgotten, len(self.conversations)))

    def test_once(self):
        """It is retried once; then it is an error."""
        asked = self.get()
        self.unauthorized()
        self.unauthorized()
        error = self.failureResultOf(asked, NotAllowed).value
        self.assertEqual((401, [SECRET]), (error.status, self.source.forgotten))

    def test_watch(self):
        """Watches are retried, too."""
        asked = self.client.watch(NODES, lambda *event: None, resource_version="1", timeout=9)
        self.unauthorized()
        self.answer(200, b"")
        self.successResultOf(asked)


class WatchTests(AnswersTestCase):
    """Watches over a connection."""

    def watch(self, timeout=100):
        """Begin a watch; its events are stored."""
        self.events = []
        self.watching = self.client.watch(
            NODES,
            lambda kind, obj: self.events.append((kind, obj)),
            resource_version="1",
            timeout=timeout,
        )
        self.network.settle()

    def begin(self, timeout=100):
        """Begin a watch, and respond."""
        self.watch(timeout)
        self.send_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def send_raw(self, data):
        """Send bytes."""
        self.server.transport.write(data)
        self.network.settle()

    def send(self, data):
        """Send a chunk."""
        self.send_raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, change="ADDED", **obj):
        """Encode an event as a line."""
        return json.dumps({"type": change, "object": obj}).encode() + b"\n"

    def failed(self, kind=ApiUnreachable):
        """Return the error, after which the connection is closed."""
        error = self.failureResultOf(self.watching, kind).value
        self.network.settle()
        self.assertIsNotNone(self.server.transport.closed_with)
        return error

    def test_cut_anywhere(self):
        """Events are the same however the data is fragmented."""
        data = self.event(a="é\n") + b"\n\r\n" + self.event("MODIFIED", b=2) + self.event(c=3)
        expected = [("ADDED", {"a": "é\n"}), ("MODIFIED", {"b": 2}), ("ADDED", {"c": 3})]
        for size in (1, 2, 3, 7, 30, 1000):
            self.begin()
            for start in range(0, len(data), size):
                self.send(data[start : start + size])
            self.assertEqual(expected, self.events)
            self.send_raw(b"0\r\n\r\n")
            self.assertIsNone(self.successResultOf(self.watching))

    def test_error_event(self):
        """An error event fails the watch with its error."""
        self.begin()
        self.send(self.event() + self.event("ERROR", **self.status(410, "Expired", "too old")))
        error = self.failed(Expired)
        self.assertEqual("too old (410 Expired)", str(error))
        self.assertEqual(1, len(self.events))

    def test_nothing_after_an_error(self):
        """Events after an error are ignored."""
        self.begin()
        self.send(self.event("ERROR", code="x") + self.event() + b"rest")
        self.failed(ApiError)
        self.assertEqual([], self.events)

    def test_no_event(self):
        """An invalid event fails the watch."""
        for line in (b"{", b"[]", b'{"type": 1, "object": {}}', b'{"type": "ADDED"}', b"\xff"):
            self.begin()
            self.send(self.event() + line + b"\n")
            self.assertIn("invalid event", str(self.failed()))
            self.assertEqual(1, len(self.events))

    def test_too_long(self):
        """An event over the limit fails the watch, whether it is complete or not."""
        self.patch(responses.Events.__init__, "__defaults__", (100,))
        for data in (b"x" * 101, b"x" * 101 + b"\n"):
            self.begin()
            self.send(self.event(a="b" * 60))
            self.send(data)
            self.assertIn("more than 100 bytes", str(self.failed()))

    def test_ends_within_an_event(self):
        """A watch that ends within an event fails."""
        self.begin()
        self.send(self.event()[:-1])
        self.send_raw(b"0\r\n\r\n")
        self.failureResultOf(self.watching, ApiUnreachable)

    def test_connection_lost(self):
        """A watch that loses its connection fails, with a type that depends on the response."""
        self.begin()
        self.network.cut_off()
        self.assertIn("watch of http://api:8001/", str(self.failed(WatchInterrupted)))
        self.network.refusing = False
        self.watch()
        self.network.cut_off()
        self.assertNotIsInstance(self.failed(), WatchInterrupted)

    def test_refused(self):
        """A watch can be rejected."""
        self.watch()
        self.answer(403, self.status(403, "Forbidden"))
        self.failureResultOf(self.watching, NotAllowed)

    def test_no_answer(self):
        """A watch without a response times out as other calls do."""
        self.watch(timeout=1000)
        self.clock.advance(CALL_SECONDS)
        self.assertIn("no answer within 30 s", str(self.failed()))

    def test_silence(self):
        """A watch that does not end half a minute after its timeout is aborted."""
        self.begin(timeout=100)
        self.clock.advance(129)
        self.assertNoResult(self.watching)
        self.clock.advance(1)
        self.assertNotIsInstance(self.failed(), WatchInterrupted)

    def test_cancelled(self):
        """A cancelled watch closes its connection."""
        self.begin()
        self.watching.cancel()
        self.failed(CancelledError)

    def test_handler_fails(self):
        """An exception of the event callback fails the watch."""
        self.watching = self.client.watch(
            NODES, lambda kind, obj: 1 / 0, resource_version="1", timeout=10
        )
        self.network.settle()
        self.send_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.send(self.event() + self.event())
        self.failed(ZeroDivisionError)

    def test_cancelled_by_an_event(self):
        """An event callback may cancel the watch."""
        seen = []

        def cancel(kind, obj):
            seen.append(kind)
            self.watching.cancel()

        self.watching = self.client.watch(NODES, cancel, resource_version="1", timeout=10)
        self.network.settle()
        self.send_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.send(self.event() + self.event())
        self.failed(CancelledError)
        self.assertEqual(["ADDED"], seen)


class PageTests(AnswersTestCase):
    """Page sizes."""

    def limits(self, size, count=4, desired=250):
        """Read pages of objects of this size; return the requested limits."""
        found = []
        for _ in range(count):
            asked = self.client.list(PODS, limit=desired)
            found.append(int(self.requests().partition("limit=")[2].split()[0].split("&")[0]))
            self.answer(200, {"items": ["x" * size] * found[-1]})
            self.successResultOf(asked)
        return found

    def test_small_objects(self):
        """For small objects, the desired number is requested after the first page."""
        self.assertEqual([FIRST_PAGE, 250, 250, 250], self.limits(100))

    def test_big_objects(self):
        """For large objects, the limit keeps pages small."""
        first, *others = self.limits(20_000)
        self.assertEqual(FIRST_PAGE, first)
        for each in others:
            self.assertTrue(25 <= each <= PAGE_BYTES / 20_000, each)

    def test_huge_objects(self):
        """At least one object is requested."""
        self.assertEqual([2, 1], self.limits(2 * PAGE_BYTES, 2, desired=2))

    def test_unlimited(self):
        """Without a limit, the whole list is requested."""
        asked = self.client.list(PODS)
        self.assertIn("GET /prefix/api/v1/pods HTTP/1.1", self.requests())
        self.answer(200, {"items": []})
        self.successResultOf(asked)


class PluginTests(AnswersTestCase):
    """Credentials that take time."""

    def test_waits(self):
        """A call waits for its credentials, within its timeout."""
        credentials = Deferred()
        self.source.current = lambda reactor: credentials
        asked = self.get()
        self.clock.advance(CALL_SECONDS)
        self.failureResultOf(asked, ApiUnreachable)
        self.assertEqual([], self.conversations)
