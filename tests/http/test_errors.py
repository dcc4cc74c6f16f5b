"""Error answers."""

import json

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.errors import accepts_json, error_response, status_of
from yurttunnel.wire.codes import Code


def parse(response):
    """Split an answer into status line, fields and body."""
    head, body = response.split(b"\r\n\r\n", 1)
    line, *fields = head.decode("ascii").split("\r\n")
    return line, dict(field.split(": ", 1) for field in fields), body


class StatusTests(SynchronousTestCase):
    """``status_of`` gives each failure the status of the design."""

    def test_each_code_has_its_status(self):
        """Section 2.2: 400, 403, 502, 503 and 504, and 502 for whatever is not foreseen."""
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
    """``accepts_json`` finds out who can read a Status."""

    def test_json_is_asked_for_by_name(self):
        """kubectl's and client-go's fields ask for JSON."""
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
        """No field, curl's ``*/*``, other types and the weight zero do not."""
        self.assertFalse(accepts_json([]))
        for field in (b"", b"*/*", b"text/plain", b"application/jsonp", b"application/json;q=0.0"):
            self.assertFalse(accepts_json([field]), field)


class ResponseTests(SynchronousTestCase):
    """``error_response`` builds answers that are complete and cannot be tampered with."""

    def test_text(self):
        """Without a wish for JSON the body is the sentence and a line end."""
        line, fields, body = parse(error_response(502, "connection refused by 10.0.0.1:80"))
        self.assertEqual(line, "HTTP/1.1 502 Bad Gateway")
        self.assertEqual(body, b"connection refused by 10.0.0.1:80\n")
        self.assertEqual(fields["Content-Length"], str(len(body)))
        self.assertEqual(fields["Content-Type"], "text/plain; charset=utf-8")
        self.assertEqual(fields["Connection"], "close")

    def test_json(self):
        """For JSON the body is a ``metav1.Status`` with the reason that belongs to the status."""
        for status, reason in {
            400: "BadRequest",
            401: "Unauthorized",
            403: "Forbidden",
            405: "MethodNotAllowed",
            408: "Timeout",
            417: "BadRequest",
            431: "BadRequest",
            502: "InternalError",
            503: "ServiceUnavailable",
            504: "Timeout",
        }.items():
            response = error_response(status, "é failed", accept=[b"application/json, */*"])
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
        """A text from elsewhere stays one line; it is cut when it is very long."""
        _, _, body = parse(error_response(502, "a\r\n\r\nHTTP/1.1 200 OK\0\x7f\u2028b\ud800"))
        self.assertEqual(body, b"a HTTP/1.1 200 OK b?\n")
        _, _, body = parse(error_response(502, "x" * 5000))
        self.assertEqual(len(body), 2049)

    def test_the_text_in_the_status_line(self):
        """It takes the place of the phrase if that is asked for, as one line of ASCII."""
        text = "a\r\nSet-Cookie: x\u2028\u00e9"
        line, fields, body = parse(error_response(503, text, in_status_line=True))
        self.assertEqual(line, "HTTP/1.1 503 a Set-Cookie: x ?")
        self.assertNotIn("Set-Cookie", fields)
        self.assertEqual(body.decode(), "a Set-Cookie: x \u00e9\n")

    def test_further_fields_are_added(self):
        """Fields that the caller gives stand in the head."""
        _, fields, _ = parse(error_response(405, "no", headers=[("Allow", "CONNECT")]))
        self.assertEqual(fields["Allow"], "CONNECT")
