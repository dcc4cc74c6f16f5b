"""TLS for the listener that stands in for kubelets, with a certificate for every requested name.

Callers dial a node's name or address and verify it. A name is in the handshake (SNI); an address is
not (RFC 6066 section 3), but it is then the local address of the connection. The embedded authority
issues a certificate for either on demand. All have one key, which lasts as long as the process.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from ipaddress import ip_address

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOProtocol

from yurttunnel.http.authority import BadAuthority, canonical_host
from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.pki.authority import Authority, AuthorityExpired
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.credentials import Credentials, new_key
from yurttunnel.pki.names import host_is_address

MAX_CERTIFICATES = 1024
"""The maximum number of cached certificates, a few KiB each; others are issued on demand."""

_RENEWAL_FRACTION = 2 / 3
"""The share of its lifetime after which a certificate is issued again."""

_DEFAULT_HOST = "localhost"

_log = Logger()


class InterceptionContexts(CallerContexts):
    """Contexts for callers that address a kubelet.

    Callers are authenticated as in :class:`CallerContexts`. A caller that requests a name that no
    certificate can contain gets a certificate for ``localhost``, and rejects it.
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
        # By name or address, the least recently used first.
        self._certificates = BoundedDict[str, x509.Certificate](max_certificates)
        default = self._certificate_for(_DEFAULT_HOST)
        super().__init__(authority.credentials(self._key, default), names)

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        connection = super().serverConnectionForTLS(tlsProtocol)
        # The address is read during the handshake: there is no transport yet.
        connection.set_app_data(tlsProtocol)
        return connection

    def _build(self, credentials: Credentials) -> SSL.Context:
        context = super()._build(credentials)
        context.set_tlsext_servername_callback(self._present_for_name)
        return context

    def _present_for_name(self, connection: SSL.Connection) -> None:
        """Select the certificate; called in every handshake, with or without SNI.

        The certificate is changed, not the context, because pyOpenSSL looks for exceptions of the
        verification in the current context, but they are in the first one.
        """
        # An exception that leaves this function would be printed, not logged.
        try:
            host = _requested_host(connection)
            if host is not None:
                connection.use_certificate(self._certificate_for(host))
        except AuthorityExpired as error:
            # The clock may be wrong. The caller gets the default certificate, and rejects it.
            self._limited.warn(
                "no node certificate can be issued for callers: {error}", error=error
            )
        except Exception:
            # OpenSSL calls this function, so nothing else reports errors.
            _log.failure("choosing a certificate for a caller failed")
        finally:
            # The protocol refers to the connection: avoid a reference cycle.
            connection.set_app_data(None)

    def _certificate_for(self, host: str) -> x509.Certificate:
        certificate = self._certificates.get(host)
        if certificate is None or self._needs_renewal(certificate):
            certificate = self._issue(host)
        self._certificates[host] = certificate
        return certificate

    def _issue(self, host: str) -> x509.Certificate:
        key = self._key.public_key()
        if host_is_address(host):
            return self._authority.sign_server(key, (), [ip_address(host)])
        return self._authority.sign_server(key, [host], ())

    def _needs_renewal(self, certificate: x509.Certificate) -> bool:
        """Return whether to issue another certificate.

        It is near its end, or not valid yet because the clock was ahead when it was issued.
        """
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        renewal_at: datetime.datetime = begin + (end - begin) * _RENEWAL_FRACTION
        return not begin <= utc_now(self._clock) < renewal_at


def _requested_host(connection: SSL.Connection) -> str | None:
    """Return the name or address that needs a certificate, ``None`` if it is invalid."""
    name = connection.get_servername()
    if name is None:
        host = str(getattr(connection.get_app_data().getHost(), "host", ""))
        # The zone is that of this machine's interface, not part of the requested address.
        text = host.partition("%")[0]
    else:
        text = name.decode("ascii", "replace")
    try:
        return str(canonical_host(text))
    except BadAuthority:
        return None
