"""Connections to the API, over TLS with the current authorities and credentials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from OpenSSL import SSL
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.http.authority import join_authority
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import Credentials, CredentialsUnavailable
from yurttunnel.kube.responses import described
from yurttunnel.tunnel.named_endpoint import named_endpoint, to_ascii
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.sockets import TunedEndpoint, tune_api_socket

CONNECT_SECONDS = 15.0
"""The timeout of a connection, including name resolution and the TLS handshake."""


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of the URL of an API."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def host_field(url: str) -> bytes:
    """Return the ``Host`` of requests to the URL of an API (RFC 9110 section 7.2).

    Raises ``ValueError`` for an invalid name.
    """
    parts = urlsplit(url)
    # Without the port, which IDNA would take for a part of the last label.
    host = to_ascii(parts.hostname or "").decode("ascii")
    if parts.port is not None:
        return join_authority(host, parts.port).encode("ascii")
    return (f"[{host}]" if ":" in host else host).encode("ascii")


@implementer(IStreamClientEndpoint)
class ApiEndpoint:
    """Connects to the API of ``configuration``.

    ``rotated()`` is called when the authorities or the credentials have changed, so that
    connections have to be replaced. The first ``skip`` addresses of the API's name are dialed last.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        configuration: KubeConfiguration,
        rotated: Callable[[], object],
        skip: int,
    ) -> None:
        self.skip = skip
        self._reactor = reactor
        self._configuration = configuration
        self._rotated = rotated
        self._host, self._port = address_of(configuration.host)
        self._secure = configuration.host.startswith("https:")
        self._used: tuple[bytes, bytes, bytes] | None = None
        self._refused: tuple[bytes, bytes, bytes] | None = None
        self._creator: IOpenSSLClientConnectionCreator | None = None

    def use(self, credentials: Credentials) -> None:
        """Use ``credentials`` and the current authorities for new connections.

        If they are invalid, the previous ones stay in use. If there are none, this raises
        ``CredentialsUnavailable``, or ``OSError`` if the authorities cannot be read.
        """
        if not self._secure:
            return
        desired = (self._configuration.authorities(), credentials.certificate, credentials.key)
        if desired in (self._used, self._refused):
            return
        try:
            creator = self._made(*desired)
        except CredentialsUnavailable as error:
            if self._creator is None:
                raise
            self._refused = desired
            self._log.warn("{error}; the previous ones stay in use", error=error)
            return
        self._creator, self._used, self._refused = creator, desired, None
        self._rotated()

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        tcp = named_endpoint(
            self._reactor, self._host, self._port, CONNECT_SECONDS, lambda: self.skip
        )
        tuned = TunedEndpoint(tcp, tune_api_socket)
        if not self._secure:
            return tuned.connect(protocolFactory)
        if self._creator is None:
            raise RuntimeError("no credentials have been set")
        # Uses Twisted's TLS: these contexts allow renegotiation, which our TLS layer does not
        # support.
        return wrapClientTLS(self._creator, tuned).connect(protocolFactory)

    def _made(
        self, authorities: bytes, certificate: bytes, key: bytes
    ) -> IOpenSSLClientConnectionCreator:
        options: dict[str, Any] = {}
        name = self._configuration.tls_server_name or self._host
        try:
            trusted = _trust_root(authorities)
            if certificate:
                chain = x509.load_pem_x509_certificates(certificate)
                options = {
                    "certificate": chain[0],
                    "extraCertChain": chain[1:],
                    "privateKey": load_pem_private_key(key, None),
                }
            # Create the context now to report errors: otherwise that is done with the first
            # connection.
            ssl.CertificateOptions(trustRoot=trusted, **options).getContext()
            return ssl.optionsForClientTLS(
                name,
                trustRoot=trusted,
                acceptableProtocols=[b"http/1.1"],
                extraCertificateOptions=options,
            )
        except UnicodeError as error:
            # From IDNA, which allows fewer names than DNS: for example no underscore.
            raise CredentialsUnavailable(
                f"{name!r} cannot be the name of an API: {described(error)}"
            ) from None
        except (ValueError, TypeError, SSL.Error) as error:
            what = "certificate authorities or the client certificate"
            raise CredentialsUnavailable(f"the {what} cannot be used: {described(error)}") from None


def _trust_root(authorities: bytes) -> Any:
    if not authorities:
        return ssl.platformTrust()
    found = x509.load_pem_x509_certificates(authorities)
    return ssl.trustRootFromCertificates(
        [ssl.Certificate.load(each.public_bytes(Encoding.DER)) for each in found]
    )
