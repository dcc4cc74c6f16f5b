"""Bearer tokens in heads."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.fields import MAX_TOKEN, BadToken, bearer_token
from yurttunnel.http.head import RequestHead


def head(*values):
    """Build a head with these ``Authorization`` fields."""
    fields = [(b"Authorization", value.encode()) for value in values]
    return RequestHead(b"GET", b"/", "1.1", fields)


class BearerTests(SynchronousTestCase):
    """The ``Authorization`` field."""

    def test_token(self):
        """A bearer token is found whatever the case of the scheme."""
        for value in ("Bearer abc.d-e_f~+/=", "bearer abc.d-e_f~+/=", "BEARER abc.d-e_f~+/= "):
            self.assertEqual("abc.d-e_f~+/=", bearer_token(head(value)))

    def test_none(self):
        """Without the field there is no token."""
        self.assertIsNone(bearer_token(head()))

    def test_malformed(self):
        """Anything but one bearer token is rejected."""
        for value in ("Basic abc", "Bearer", "Bearer ", "Bearer a b", "abc", "Bearer é"):
            self.assertRaises(BadToken, bearer_token, head(value))
        self.assertRaises(BadToken, bearer_token, head("Bearer a", "Bearer b"))

    def test_spaces(self):
        """With more than one space the API would find no token: the request would be anonymous."""
        for value in ("Bearer  a", "Bearer \ta", "Bearer\ta"):
            self.assertRaises(BadToken, bearer_token, head(value))

    def test_length(self):
        """A token has at most the maximum length."""
        self.assertTrue(bearer_token(head("Bearer " + "a" * MAX_TOKEN)))
        longer = head("Bearer " + "a" * (MAX_TOKEN + 1))
        self.assertRaises(BadToken, bearer_token, longer)
