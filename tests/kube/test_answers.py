"""The client's requests and its handling of responses, with a server that the test plays."""

from __future__ import annotations

import json
from dataclasses import replace

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.conversations import SECRET, AnswersTestCase
from tests.logged import Logged
from yurttunnel.kube import responses
from yurttunnel.kube.client import CALL_SECONDS, MAX_IDLE, KubeClient
from yurttunnel.kube.credentials import Credentials, CredentialsUnavailable
from yurttunnel.kube.endpoints import CONNECT_SECONDS, host_field
from yurttunnel.kube.errors import (
    ApiError,
    ApiUnreachable,
    Conflict,
    Expired,
    NotAllowed,
    NotFound,
)
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, PODS, TOKEN_REVIEWS


class BodyTests(SynchronousTestCase):
    """Collecting a body."""

    def test_bound(self):
        """A body of the limit is accepted, and one byte more is not."""
        body, other = responses.Body(3), responses.Body(3)
        body.take(b"ab")
        body.take(b"c")
        self.assertEqual(b"abc", body.whole())
        self.assertRaises(ApiUnreachable, other.take, b"abcd")


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

    def test_silent_address(self):
        """A connection that is not established in time fails the call before its own timeout."""
        self.network.connect = lambda factory: Deferred()
        asked = self.get()
        self.clock.advance(CONNECT_SECONDS - 1)
        self.assertNoResult(asked)
        self.clock.advance(1)
        error = self.failureResultOf(asked, ApiUnreachable).value
        self.assertIn("GET http://api:8001/prefix/api/v1/nodes/n1: no connection", str(error))

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
