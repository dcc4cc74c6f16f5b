"""What ``yurttunnel.pki.rejection`` uses of pyOpenSSL, which keeps it to itself.

Nothing of this package is imported here, which could not be without these names.
"""

from __future__ import annotations

import contextlib
import operator

import OpenSSL
from OpenSSL import SSL
from twisted.trial.unittest import SynchronousTestCase

with contextlib.suppress(ImportError):
    import OpenSSL._util

LIBRARY = (
    "SSL_CTX_set_verify",
    "SSL_set_verify",
    "X509_STORE_CTX_get_error",
    "X509_STORE_CTX_set_error",
    "X509_V_OK",
)


class PrivateNamesTests(SynchronousTestCase):
    """They may go with any version."""

    def test_there(self) -> None:
        """All of them are, or the refusal of a certificate has to find another way."""
        context = SSL.Context(SSL.TLS_METHOD)
        connection = SSL.Connection(SSL.Context(SSL.TLS_METHOD), None)
        for verified in (context, connection):
            verified.set_verify(SSL.VERIFY_PEER, lambda *_: True)
        missing = []
        for owner, names in (
            (OpenSSL, ("_util.ffi.callback", *(f"_util.lib.{name}" for name in LIBRARY))),
            (context, ("_context", "_verify_helper.callback")),
            (connection, ("_ssl", "_verify_helper.callback")),
        ):
            for name in names:
                try:
                    operator.attrgetter(name)(owner)
                except AttributeError:
                    missing.append(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
        self.assertEqual([], missing, f"pyOpenSSL {OpenSSL.__version__} does not have them")
