"""Connections to the API, by TLS with what is trusted and presented at the time."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakSet

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from OpenSSL import SSL
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    ISystemHandle,
    ITCPTransport,
)
from twisted.logger import Logger
from twisted.web.client import URI
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import Credentials, CredentialsUnavailable
from yurttunnel.kube.responses import described
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.sockets import tune_api_socket

CONNECT_SECONDS = 15.0
"""How long a connection may take."""


@implementer(IAgentEndpointFactory)
class ApiEndpoints:
    """Endpoints of the API of ``configuration``.

    ``rotated()`` is called when connections have to be made anew, since what is trusted or what
    is presented is no longer the same.
    """

    _log = Logger()

    def __init__(
        self, reactor: IReactor, configuration: KubeConfiguration, rotated: Callable[[], object]
    ) -> None:
        self._reactor = reactor
        self._configuration = configuration
        self._rotated = rotated
        self._host = urlsplit(configuration.host).hostname or ""
        self._used: tuple[bytes, bytes, bytes] | None = None
        self._refused: tuple[bytes, bytes, bytes] | None = None
        self._creator: IOpenSSLClientConnectionCreator | None = None
        self._connections: WeakSet[ITCPTransport] = WeakSet()

    def abort(self) -> None:
        """Abort all connections."""
        for connection in list(self._connections):
            connection.abortConnection()

    def use(self, credentials: Credentials) -> None:
        """Present ``credentials`` from now on, to an API that has the authorities of this time.

        When these make no sense, those before stay in use. If there are none, this raises
        ``CredentialsUnavailable``, or ``OSError`` when the authorities cannot be read.
        """
        if not self._configuration.host.startswith("https:"):
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
            self._log.warn("{error}; those before stay in use", error=error)
            return
        self._creator, self._used, self._refused = creator, desired, None
        self._rotated()

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """Return an endpoint for a new connection."""
        tcp = _KeptAlive(
            HostnameEndpoint(self._reactor, uri.host, uri.port, timeout=CONNECT_SECONDS),
            self._connections,
        )
        if uri.scheme != b"https":
            return tcp
        if self._creator is None:
            raise RuntimeError("no credentials have been set")
        return wrapClientTLS(self._creator, tcp)

    def _made(
        self, authorities: bytes, certificate: bytes, key: bytes
    ) -> IOpenSSLClientConnectionCreator:
        options: dict[str, Any] = {}
        try:
            trusted = _trust_root(authorities)
            if certificate:
                chain = x509.load_pem_x509_certificates(certificate)
                options = {
                    "certificate": chain[0],
                    "extraCertChain": chain[1:],
                    "privateKey": load_pem_private_key(key, None),
                }
            # The context of the other options is only made with the first connection, where
            # nobody could be told.
            ssl.CertificateOptions(trustRoot=trusted, **options).getContext()
            return ssl.optionsForClientTLS(
                self._configuration.tls_server_name or self._host,
                trustRoot=trusted,
                acceptableProtocols=[b"http/1.1"],
                extraCertificateOptions=options,
            )
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


@implementer(IStreamClientEndpoint)
class _KeptAlive:
    """Connects by TCP, and has the kernel notice when the other end is gone.

    What is connected is put into ``connections``.
    """

    def __init__(
        self, endpoint: IStreamClientEndpoint, connections: WeakSet[ITCPTransport]
    ) -> None:
        self._endpoint = endpoint
        self._connections = connections

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:
        return self._endpoint.connect(factory).addCallback(self._connected)

    def _connected(self, protocol: IProtocol) -> IProtocol:
        transport = getattr(protocol, "transport", None)
        # What has a socket, be it a transport of Twisted's or of this package.
        if ISystemHandle.providedBy(transport):
            tune_api_socket(cast("socket.socket", ISystemHandle(transport).getHandle()))
            self._connections.add(cast(ITCPTransport, transport))
        return protocol
