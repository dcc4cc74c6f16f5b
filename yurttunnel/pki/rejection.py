"""The alert by which a peer learns that its certificate is not accepted here.

OpenSSL derives the alert from the error of the verification, and has none where it is we who
refuse a certificate that is valid: it would say ``internal_error`` (``ssl_x509err2alert``, and the
safety net in ``verify_chain`` of x509_vfy.c). RFC 8446 section 6.2 has ``bad_certificate`` for
that; OpenSSL cannot be made to say ``access_denied``.

The error is set in the callback of the verification, in the store context of OpenSSL. The callback
that pyOpenSSL has in public gets the error as a number, gives back a truth value, and has no store
context (``Context.set_verify``); 26.4 has no other, though one was proposed (pull request 257 of
pyca/pyopenssl). ``cryptography`` has no TLS, and ``ssl`` no callback. So this uses what pyOpenSSL
keeps to itself: ``OpenSSL._util``, and the attributes ``_verify_helper``, ``_context`` and
``_ssl``. A version without them starts no program of this package, and
``tests.pki.test_private_names`` names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from OpenSSL import SSL
from OpenSSL._util import ffi, lib
from OpenSSL.crypto import X509

Verification = Callable[[SSL.Connection, X509, int, int, int], bool]
"""As ``set_verify`` takes it."""

_REJECTED = 28
"""``X509_V_ERR_CERT_REJECTED`` of OpenSSL's x509_vfy.h, the alert ``bad_certificate``."""


def set_verification(
    verified: SSL.Context | SSL.Connection, mode: int, verification: Verification
) -> None:
    """Do what ``set_verify`` of ``verified`` does, with a fitting alert for what is refused."""
    verified.set_verify(mode, verification)
    helper: Any = verified._verify_helper
    by_pyopenssl = helper.callback

    def verify(valid: int, store: object) -> int:
        accepted: int = by_pyopenssl(valid, store)
        if not accepted and lib.X509_STORE_CTX_get_error(store) == lib.X509_V_OK:
            lib.X509_STORE_CTX_set_error(store, _REJECTED)
        return accepted

    # pyOpenSSL keeps the helper as long as it needs it, and so that of which it is a part.
    helper.callback = ffi.callback("int (*)(int, X509_STORE_CTX *)", verify)
    if isinstance(verified, SSL.Context):
        lib.SSL_CTX_set_verify(verified._context, mode, helper.callback)
    else:
        lib.SSL_set_verify(verified._ssl, mode, helper.callback)
