"""TLS for the listener that stands in for kubelets: a certificate for whatever name is asked for.

Callers dial a node's name or address and verify that. The name comes with the handshake (SNI);
an address does not (RFC 6066 section 3), but then it is the address that the connection has come
to. The embedded authority issues a certificate for either on the spot. All have one key, which
lives as long as the process.
"""

from __future__ import annotations

import datetime
from collections import OrderedDict
from collections.abc import Collection
from ipaddress import ip_address

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOProtocol

from yurttunnel.http.authority import BadAuthority, canonical_host
from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.authority import Authority, AuthorityEnded
from yurttunnel.pki.callers import CallerContexts
from yurttunnel.pki.credentials import Credentials, new_key
from yurttunnel.pki.names import host_is_address

MAX_CERTIFICATES = 1024
"""How many certificates are kept, a few KiB each; others are issued again when asked for."""

_LATE = 2 / 3
"""The share of its life after which a certificate is issued again."""

_DEFAULT_HOST = "localhost"

_log = Logger()


class InterceptionContexts(CallerContexts):
    """Contexts for callers that believe they talk to a kubelet.

    Who gets through is as in :class:`CallerContexts`. A caller that asks for what no certificate
    can name is shown one for ``localhost``, and refuses it.
    """

    def __init__(
        self,
        clock: IReactorTime,
        authority: Authority,
        names: Collection[str] | None,
        max_certificates: int = MAX_CERTIFICATES,
    ) -> None:
        self._clock = clock
        self._authority = authority
        self._limited = RateLimitedLog(clock, _log)
        self._key = new_key()
        self._max_certificates = max_certificates
        # By name or address, the last used last.
        self._certificates: OrderedDict[str, x509.Certificate] = OrderedDict()
        default = self._certificate_for(_DEFAULT_HOST)
        super().__init__(authority.credentials(self._key, default), names)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Make the TLS state of a connection whose transport is ``tlsProtocol``."""
        connection = super().serverConnectionForTLS(tlsProtocol)
        # Its address is not known before the handshake: it has no transport yet.
        connection.set_app_data(tlsProtocol)
        return connection

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = super()._build(credentials)
        context.set_tlsext_servername_callback(self._present_for_name)
        return context

    def _present_for_name(self, connection: SSL.Connection) -> None:
        """Choose the certificate; called in every handshake, with a name in it or without.

        The certificate is changed and not the context: pyOpenSSL looks for what the verification
        has raised in the current context, where that of the first one would not be.
        """
        # An exception that leaves this function would be printed past the log.
        try:
            host = _wanted_host(connection)
            if host is not None:
                connection.use_certificate(self._certificate_for(host))
        except AuthorityEnded as error:
            # By a clock that may be set: the one for the default host, which the caller refuses.
            self._limited.warn(
                "no node certificate can be issued for callers: {error}", error=error
            )
        except Exception:
            # OpenSSL calls this: nobody else would hear of an error.
            _log.failure("choosing a certificate for a caller failed")
        finally:
            # The protocol refers to the connection.
            connection.set_app_data(None)

    def _certificate_for(self, host: str) -> x509.Certificate:
        certificates = self._certificates
        certificate = certificates.get(host)
        if certificate is None or self._is_due(certificate):
            certificate = certificates[host] = self._issue(host)
        certificates.move_to_end(host)
        while len(certificates) > self._max_certificates:
            certificates.popitem(last=False)
        return certificate

    def _issue(self, host: str) -> x509.Certificate:
        key = self._key.public_key()
        if host_is_address(host):
            return self._authority.sign_server(key, (), [ip_address(host)])
        return self._authority.sign_server(key, [host], ())

    def _is_due(self, certificate: x509.Certificate) -> bool:
        """Return whether another is to be issued: near its end, or before it begins, as that of a
        clock that was ahead.
        """
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        late: datetime.datetime = begin + (end - begin) * _LATE
        return not begin <= utc_now(self._clock) < late


def _wanted_host(connection: SSL.Connection) -> str | None:
    """Return the name or address to present a certificate for, ``None`` when there is no such."""
    name = connection.get_servername()
    if name is None:
        host = str(getattr(connection.get_app_data().getHost(), "host", ""))
        # That of this machine's interface is none of the name that is asked for.
        text = host.partition("%")[0]
    else:
        text = name.decode("ascii", "replace")
    try:
        return str(canonical_host(text))
    except BadAuthority:
        return None
