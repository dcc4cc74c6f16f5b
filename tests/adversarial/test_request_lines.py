"""Request lines in which one parser could see a line end and another none."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.head import HeadError, HeadLimits, RequestHeadReader


class RequestLineTests(SynchronousTestCase):
    """Defects that the fuzzer has found, and similar request lines."""

    def test_line_ends_within_a_target(self) -> None:
        """A line feed in a target is rejected, also where the rest of the line looks like a field.

        llhttp parses such a line as a request of HTTP/0.9 and a field.
        """
        for target in (
            b"/a\nX:b",
            b"/\nHost: other\n",
            b"[2001:d\n8::1]:10250",
            b"edge-1:10250\nX:",
            b"/a\r\nX:b",
            b"/a\rX:b",
        ):
            for method in (b"GET", b"CONNECT", b"OPTIONS"):
                reader = RequestHeadReader(HeadLimits())
                data = b"%b %b HTTP/1.1\r\nHost: x\r\n\r\n" % (method, target)
                error = self.assertRaises(HeadError, reader.feed, data)
                self.assertEqual(400, error.status, data)

    def test_other_characters_of_no_target(self) -> None:
        """Every byte in a target that is not a printable ASCII character is rejected."""
        for byte in (*range(33), *range(127, 256)):
            reader = RequestHeadReader(HeadLimits())
            data = b"GET /a%bb HTTP/1.1\r\nHost: x\r\n\r\n" % bytes([byte])
            self.assertRaises(HeadError, reader.feed, data)
