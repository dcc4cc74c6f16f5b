"""The end of values: guessed or scanned."""

from __future__ import annotations

from unittest import mock

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.media import json_values
from yurttunnel.hub.media.json_values import MAX_SCALAR, EndScanner, ValueReader, may_be_last
from yurttunnel.kube.protobuf_fields import BadBody

SEQUEL = b'},{"a"'


class GuessTests(SynchronousTestCase):
    """Guessed ends."""

    def setUp(self):
        """Count the calls of the decoder."""
        self.decoded = []
        self.reader = ValueReader(self.decode, 100, SEQUEL)

    def decode(self, text):
        """Decode a value."""
        self.decoded.append(text)
        return msgspec.json.decode(text)

    def test_guessed(self):
        """A value followed by the sequel is decoded once, and not scanned."""
        text = bytearray(b'{"a":1},{"a":2},{"a"')
        with mock.patch.object(json_values, "EndScanner", side_effect=AssertionError):
            one = self.reader.read(text, 0, False)
            two = self.reader.read(text, one.end + 1, False)
            self.assertIsNone(self.reader.read(text, two.end + 1, False))
        self.assertEqual([one.content, two.content], [{"a": 1}, {"a": 2}])
        self.assertEqual(self.decoded, [one.text, two.text])

    def test_in_pieces(self):
        """The sequel is found wherever it was split."""
        whole = b'{"a":1},{"a"'
        for cut in range(1, len(whole)):
            text = bytearray(whole[:cut])
            self.assertIsNone(self.reader.read(text, 0, False))
            text += whole[cut:]
            with mock.patch.object(json_values, "EndScanner", side_effect=AssertionError):
                self.assertEqual(self.reader.read(text, 0, False).content, {"a": 1})

    def test_wrong(self):
        """A sequel found within a value is not used again."""
        text = bytearray(b'{"a":[{"a":1},{"a":2},{"a":3}]},{"a"')
        self.assertEqual(self.reader.read(text, 0, False).end, text.index(b"]}") + 2)
        self.assertEqual(len(self.decoded), 2)
        self.assertEqual(self.reader.sequel, b"")

    def test_may_be_last(self):
        """A text may end with an object if its last token is a brace."""
        for data, before, expected in (
            (b"}", False, True),
            (b"x} \r\n\t", False, True),
            (b"x", True, False),
            (b"}]", True, False),
            (b" \n", True, True),
            (b"", False, False),
        ):
            self.assertEqual(may_be_last(data, before), expected)


class ScannerTests(SynchronousTestCase):
    """Scanned ends."""

    def find(self, pieces, start=0):
        """Return the piece after which the end is found, and its position."""
        scanner, text = EndScanner(), bytearray()
        for number, piece in enumerate(pieces):
            text += piece
            end = scanner.find(text, start)
            if end >= 0:
                return number, end
        return None

    def test_ends(self):
        """The end is correct, whatever strings contain, and however the text is split."""
        for value in (
            b"{}",
            b"[]",
            b'""',
            b'"\\""',
            b'"\\\\"',
            b'{"a":"}"}',
            b'{"a":"\\"}","b":[{"c":[[{"d":[1,"]"]}]]}]}',
            b'[{},{"a":{}},[[]],"{"]',
            b'{"\\\\":"\\\\","\n":"\\u007d"}',
            b"-1.5e+9",
            b"null",
        ):
            text = b"#" + value + b',"'
            for cut in range(2, len(text)):
                _, end = self.find([text[:cut], text[cut:]], 1)
                self.assertEqual(end, 1 + len(value))
            octets = [text[at : at + 1] for at in range(2, len(text))]
            self.assertEqual(self.find([text[:2], *octets], 1)[1], 1 + len(value))

    def test_long_scalar(self):
        """The length of a number is limited."""
        whole = b"1" * MAX_SCALAR
        self.assertEqual(self.find([whole + b","]), (0, MAX_SCALAR))
        self.assertIsNone(self.find([whole]))
        for pieces in ([whole + b"1,"], [whole, b"1"], [b"#" * 100]):
            with self.assertRaises(BadBody):
                self.find(pieces)
