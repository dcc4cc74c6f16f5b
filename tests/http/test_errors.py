"""Error responses."""

import json

from twisted.trial.unittest import SynchronousTestCase

from tests.http.kube_clients import upgrade_failure
from yurttunnel.http.errors import (
    ApiFailure,
    RequestFailed,
    accepts_json,
    error_response,
    status_content,
    status_of,
)
from yurttunnel.http.fields import Head
from yurttunnel.wire.codes import Code

CURL = Head("1.1", [(b"Accept", b"*/*")])
KUBECTL = Head("1.1", [(b"Accept", b"application/json, */*")])


def parse(response):
    """Split a response into status line, fields and body."""
    head, body = response.split(b"\r\n\r\n", 1)
    line, *fields = head.decode("ascii").split("\r\n")
    return line, dict(field.split(": ", 1) for field in fields), body


class StatusTests(SynchronousTestCase):
    """``status_of`` maps each code to the status of the design."""

    def test_each_code_has_its_status(self):
        """Section 2.2: 400, 403, 502, 503 and 504; codes without a mapping are 502."""
        expected = {
            Code.BAD_DESTINATION: 400,
            Code.DENIED: 403,
            Code.REFUSED: 502,
            Code.UNREACHABLE: 502,
            Code.NAME_NOT_RESOLVED: 502,
            Code.OVERLOADED: 503,
            Code.GOING_AWAY: 503,
            Code.SESSION_LOST: 503,
            Code.REPLACED: 503,
            Code.REVOKED: 503,
            Code.NOT_AUTHORIZED: 503,
            Code.TIMEOUT: 504,
        }
        for code in Code:
            self.assertEqual(status_of(code), expected.get(code, 502), code)


class AcceptTests(SynchronousTestCase):
    """``accepts_json`` determines whether the client reads a Status."""

    def test_json_is_requested_by_name(self):
        """The fields of kubectl and client-go name JSON."""
        for field in (
            b"application/json",
            b"application/json, */*",
            b"text/html, Application/JSON; q=0.5",
            b"application/*",
            b"application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        ):
            self.assertTrue(accepts_json([field]), field)
        self.assertTrue(accepts_json([b"text/plain", b"application/json"]))

    def test_anything_else_gets_text(self):
        """No field, curl's ``*/*``, other types and a weight of 0 do not."""
        self.assertFalse(accepts_json([]))
        for field in (b"", b"*/*", b"text/plain", b"application/jsonp", b"application/json;q=0.0"):
            self.assertFalse(accepts_json([field]), field)

    def test_parsed_text_is_limited(self):
        """Before authentication, half a megabyte of types does not take a second to parse."""
        for field, read in ((b"a," * 2040 + b"application/json", True), (b"a," * 2048, False)):
            self.assertEqual(read, accepts_json([field, b"application/json"]))


class ResponseTests(SynchronousTestCase):
    """``error_response`` builds complete responses, whatever their text contains."""

    def test_text(self):
        """Without JSON in ``Accept`` the body is the message and a line end."""
        line, fields, body = parse(error_response(502, "connection refused by 10.0.0.1:80", CURL))
        self.assertEqual(line, "HTTP/1.1 502 Bad Gateway")
        self.assertEqual(body, b"connection refused by 10.0.0.1:80\n")
        self.assertEqual(fields["Content-Length"], str(len(body)))
        self.assertEqual(fields["Content-Type"], "text/plain; charset=utf-8")
        self.assertEqual(fields["Connection"], "close")

    def test_json(self):
        """With JSON the body is a ``metav1.Status`` with the reason for the status."""
        for status, reason in {
            400: "BadRequest",
            401: "Unauthorized",
            403: "Forbidden",
            404: "NotFound",
            405: "MethodNotAllowed",
            408: "Timeout",
            417: "BadRequest",
            431: "BadRequest",
            502: "InternalError",
            503: "ServiceUnavailable",
            504: "Timeout",
        }.items():
            response = error_response(status, "é failed", KUBECTL)
            _, fields, body = parse(response)
            self.assertEqual(fields["Content-Type"], "application/json")
            self.assertEqual(fields["Content-Length"], str(len(body)))
            self.assertEqual(
                json.loads(body),
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "metadata": {},
                    "status": "Failure",
                    "message": "é failed",
                    "reason": reason,
                    "code": status,
                },
            )

    def test_line_ends_in_the_text_become_spaces(self):
        """A text from another source stays one line, and is truncated if it is very long."""
        _, _, body = parse(error_response(502, "a\r\n\r\nHTTP/1.1 200 OK\0\x7f\u2028b\ud800", CURL))
        self.assertEqual(body, b"a HTTP/1.1 200 OK b?\n")
        _, _, body = parse(error_response(502, "x" * 5000, CURL))
        self.assertEqual(len(body), 2049)

    def test_the_text_in_the_status_line(self):
        """The text replaces the reason phrase on request, as one line of ASCII."""
        text = "a\r\nSet-Cookie: x\u2028\u00e9"
        line, fields, body = parse(error_response(503, text, CURL, in_status_line=True))
        self.assertEqual(line, "HTTP/1.1 503 a Set-Cookie: x ?")
        self.assertNotIn("Set-Cookie", fields)
        self.assertEqual(body.decode(), "a Set-Cookie: x \u00e9\n")

    def test_further_fields_are_added(self):
        """Additional fields are in the head."""
        _, fields, _ = parse(error_response(405, "no", CURL, headers=[("Allow", "CONNECT")]))
        self.assertEqual(fields["Allow"], "CONNECT")


class UpgradeTests(SynchronousTestCase):
    """A request with an upgrade gets a ``Status``, whatever it accepts."""

    SENTENCES = (
        "node edge-1 is not connected: its agent was last seen 3 s ago",
        "the kubelet of edge-1 at 10.0.0.1:10250: no connection became free in time",
        "status: Success",
        "kind: Pod",
        "{}",
        '"quoted": \\ and [more',
        "- a",
        "&anchor: *alias",
        "--- a: b",
    )

    def test_every_sentence_arrives(self):
        """SPDY and WebSocket clients show any message, including colons and braces."""
        for protocol in (b"SPDY/3.1", b"websocket"):
            for accept in ([], [b"*/*"], [b"text/plain"], [b"application/json;q=0"]):
                fields = [(b"Connection", b"Upgrade"), (b"Upgrade", protocol)]
                head = Head("1.1", fields + [(b"Accept", each) for each in accept])
                for sentence in self.SENTENCES:
                    answer = error_response(503, sentence, head)
                    self.assertEqual(upgrade_failure(answer), sentence, (protocol, accept))
                    self.assertEqual(parse(answer)[1]["Content-Type"], "application/json")

    def test_long_sentences(self):
        """Long messages are truncated, rather than the JSON, whatever they contain."""
        head = Head("1.1", [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")])
        for sentence in ("no: " * 400, "\u00e9" * 2000, '"' * 3000, "\u65e5" * 900):
            answer = error_response(400, sentence, head)
            self.assertLessEqual(len(parse(answer)[2]), 1024)
            events = upgrade_failure(answer)
            self.assertTrue(events.endswith("..."), events)
            self.assertTrue(sentence.startswith(events[:-3]), events)
            self.assertGreater(len(events), 70)
        short = error_response(400, "x" * 600, head)
        self.assertEqual(upgrade_failure(short), "x" * 600)

    def test_what_text_would_say(self):
        """The model of the decoder loses a text with a colon, like the real one."""
        self.assertEqual(upgrade_failure(error_response(503, self.SENTENCES[0], CURL)), "")
        without = "the server has too many connections"
        events = "unable to upgrade connection: " + without
        self.assertEqual(upgrade_failure(error_response(503, without, CURL)), events)

    def test_unknown_caller(self):
        """A head that is rejected may have been a request with an upgrade."""
        answer = error_response(400, "the request head is malformed: too bad", None)
        self.assertEqual(upgrade_failure(answer), "the request head is malformed: too bad")

    def test_what_is_no_upgrade(self):
        """An h2c offer of curl, and a field that ``Connection`` does not name, get text."""
        for fields in (
            [(b"Connection", b"Upgrade, HTTP2-Settings"), (b"Upgrade", b"h2c")],
            [(b"Upgrade", b"websocket")],
        ):
            _, _, body = parse(error_response(503, "a: b", Head("1.1", fields)))
            self.assertEqual(body, b"a: b\n")


class ApiFailureTests(SynchronousTestCase):
    """``status_content`` returns errors in the format of the Kubernetes API."""

    def test_all_of_it(self):
        """Reason, details and retry time are in the Status, the last also in the head."""
        failure = ApiFailure(503, "no:\ncloud", "ServerTimeout", {"kind": "pods"}, retry_after=7)
        fields, body = status_content(failure)
        self.assertEqual({b"Content-Type": b"application/json", b"Retry-After": b"7"}, dict(fields))
        expected = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "no: cloud",
            "reason": "ServerTimeout",
            "details": {"kind": "pods", "retryAfterSeconds": 7},
            "code": 503,
        }
        self.assertEqual(expected, json.loads(body))

    def test_the_usual_reason(self):
        """By default the reason is derived from the status."""
        for failure, reason in (
            (RequestFailed(400, "x"), "BadRequest"),
            (ApiFailure(404, "x"), "NotFound"),
            (ApiFailure(406, "x"), "NotAcceptable"),
            (ApiFailure(409, "x"), "Conflict"),
            (ApiFailure(410, "x"), "Expired"),
            (ApiFailure(413, "x"), "RequestEntityTooLarge"),
            (ApiFailure(415, "x"), "UnsupportedMediaType"),
            (ApiFailure(429, "x"), "TooManyRequests"),
        ):
            fields, body = status_content(failure)
            self.assertEqual([(b"Content-Type", b"application/json")], fields)
            status = json.loads(body)
            self.assertEqual(reason, status["reason"])
            self.assertNotIn("details", status)
