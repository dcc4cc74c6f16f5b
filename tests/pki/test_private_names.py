"""The private names of pyOpenSSL that ``yurttunnel.pki.rejection`` uses.

This module imports nothing of this package, which cannot be imported without these names.
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
    """Any version may remove them."""

    def test_there(self) -> None:
        """All of them exist; otherwise the rejection of certificates needs another way."""
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
