"""The TLS alert to a peer whose certificate is rejected here.

OpenSSL derives the alert from its verification error. If our code rejects a certificate that is
valid for OpenSSL, there is none, and the alert would be ``internal_error`` (``ssl_x509err2alert``,
and the safety net in ``verify_chain`` of x509_vfy.c). RFC 8446 section 6.2 defines
``bad_certificate`` for this case; OpenSSL cannot send ``access_denied``.

The verification callback sets the error in OpenSSL's store context. pyOpenSSL's public callback
(``Context.set_verify``) gets the error as a number, returns a boolean, and has no access to the
store context; 26.4 has no other callback, although one was proposed (pull request 257 of
pyca/pyopenssl). ``cryptography`` has no TLS, and ``ssl`` no callback. This module therefore uses
private parts of pyOpenSSL: ``OpenSSL._util``, and the attributes ``_verify_helper``, ``_context``
and ``_ssl``. With a version that lacks them no program of this package starts, and
``tests.pki.test_private_names`` names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from OpenSSL import SSL
from OpenSSL._util import ffi, lib
from OpenSSL.crypto import X509

Verification = Callable[[SSL.Connection, X509, int, int, int], bool]
"""The callback of ``set_verify``."""

_REJECTED = 28
"""``X509_V_ERR_CERT_REJECTED`` of OpenSSL's x509_vfy.h, for the alert ``bad_certificate``."""


def set_verification(
    verified: SSL.Context | SSL.Connection, mode: int, verification: Verification
) -> None:
    """Call ``set_verify`` of ``verified``, and send the right alert for rejected certificates."""
    verified.set_verify(mode, verification)
    helper: Any = verified._verify_helper
    by_pyopenssl = helper.callback

    def verify(valid: int, store: object) -> int:
        accepted: int = by_pyopenssl(valid, store)
        if not accepted and lib.X509_STORE_CTX_get_error(store) == lib.X509_V_OK:
            lib.X509_STORE_CTX_set_error(store, _REJECTED)
        return accepted

    # pyOpenSSL keeps a reference to the helper, and so to its callback, as long as it is needed.
    helper.callback = ffi.callback("int (*)(int, X509_STORE_CTX *)", verify)
    if isinstance(verified, SSL.Context):
        lib.SSL_CTX_set_verify(verified._context, mode, helper.callback)
    else:
        lib.SSL_set_verify(verified._ssl, mode, helper.callback)
