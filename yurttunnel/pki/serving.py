"""The certificates that the standalone server makes for itself and for its callers."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.addresses import local_addresses
from yurttunnel.pki.authority import KUBELET_CLIENT_NAME, Authority, PublicKey, utc_now
from yurttunnel.pki.contexts import names_in
from yurttunnel.pki.credentials import (
    Credentials,
    certificates_to_pem,
    is_issued_by,
    key_to_pem,
    load_certificates,
    load_credentials,
    load_key,
    new_key,
    save_credentials,
)
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.identity import NODE_ORGANIZATION, host_is_address

SERVER_FILE = "server.pem"
KUBELET_CLIENT_FILE = "kubelet-client.pem"
CALLER_CERTIFICATE = "client.crt"
CALLER_KEY = "client.key"

_log = Logger()


class KeptCertificate:
    """A certificate of the server, with its key in one file of the state directory."""

    file: str

    def __init__(
        self, clock: IReactorTime, directory: StateDirectory, authority: Authority
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._authority = authority

    def load(self) -> Credentials:
        """Return the certificate from the file if it is still good, or else a new one.

        It is not when it is not for what is wanted, comes from another authority or is near its
        end. Raises :class:`StateError`.
        """
        try:
            stored = load_credentials(self._directory, self.file)
        except StateError as error:
            # Nothing is lost with it: whoever trusts the authority trusts the next one.
            _log.warn("{error}; a new certificate is made", error=error)
            stored = None
        if stored is not None and self._is_good(stored.certificate):
            return self._authority.credentials(stored.key, stored.certificate)
        credentials = self._issue()
        try:
            self.store(credentials)
        except StateError as error:
            if not error.disk_is_full:
                raise
            _log.warn("{error}; another certificate is made at the next start", error=error)
        return credentials

    async def obtain(self) -> Credentials:
        """Make a new certificate with a new key."""
        return self._issue()

    def store(self, credentials: Credentials) -> None:
        """Keep it for the next start; raises :class:`StateError`."""
        save_credentials(self._directory, self.file, credentials)

    def _issue(self) -> Credentials:
        key = new_key()
        return self._authority.credentials(key, self._sign(key.public_key()))

    def _is_good(self, certificate: x509.Certificate) -> bool:
        return _is_fresh(self._clock, certificate, self._authority)

    def _sign(self, key: PublicKey) -> x509.Certificate:
        raise NotImplementedError


class ServingCertificate(KeptCertificate):
    """The server's own certificate for its agents, in ``server.pem``.

    It is for the names and addresses in ``names``, for the bind addresses (all addresses of
    the machine where one is a wildcard), for the machine's name and for loopback.
    """

    file = SERVER_FILE

    def __init__(
        self,
        clock: IReactorTime,
        directory: StateDirectory,
        authority: Authority,
        bind_addresses: Iterable[str],
        names: Iterable[str] = (),
    ) -> None:
        super().__init__(clock, directory, authority)
        self._hosts, self._addresses = _names_to_serve(bind_addresses, names)

    def _sign(self, key: PublicKey) -> x509.Certificate:
        return self._authority.sign_server(key, self._hosts, self._addresses)

    def _is_good(self, certificate: x509.Certificate) -> bool:
        desired = self._hosts | {str(address) for address in self._addresses}
        return desired <= set(names_in(certificate)) and super()._is_good(certificate)


class KubeletClientCertificate(KeptCertificate):
    """The certificate by which kubelets know the server, in ``kubelet-client.pem``."""

    file = KUBELET_CLIENT_FILE

    def _sign(self, key: PublicKey) -> x509.Certificate:
        return self._authority.sign_client(key, KUBELET_CLIENT_NAME, NODE_ORGANIZATION)


def ensure_caller_certificate(
    clock: IReactorTime, directory: StateDirectory, authority: Authority
) -> None:
    """See to it that ``client.crt`` and ``client.key`` admit their holder to the server.

    They are made when they are missing, do not fit together or are near their end. Raises
    :class:`StateError` when they cannot be written.
    """
    try:
        key = load_key(directory, CALLER_KEY)
        certificates = load_certificates(directory, CALLER_CERTIFICATE)
    except StateError as error:
        _log.warn("{error}; a new pair is made", error=error)
        key = certificates = None
    if (
        key is not None
        and certificates
        and certificates[0].public_key() == key.public_key()
        and _is_fresh(clock, certificates[0], authority)
    ):
        return
    key = new_key()
    certificate = authority.sign_caller(key.public_key())
    directory.write(CALLER_KEY, key_to_pem(key))
    directory.write(CALLER_CERTIFICATE, certificates_to_pem([certificate]))


def _is_fresh(clock: IReactorTime, certificate: x509.Certificate, authority: Authority) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    renewal = begin + (end - begin) * 2 / 3
    return begin <= utc_now(clock) < renewal and is_issued_by(certificate, authority.certificate)


def _names_to_serve(
    bind_addresses: Iterable[str], names: Iterable[str]
) -> tuple[set[str], set[IPv4Address | IPv6Address]]:
    hosts = {"localhost"}
    addresses: set[IPv4Address | IPv6Address] = {ip_address("127.0.0.1"), ip_address("::1")}
    machine = socket.gethostname().lower()
    for name in (*bind_addresses, *names, machine):
        if not name:
            continue
        if host_is_address(name):
            addresses.add(ip_address(name))
        elif name.isascii():
            hosts.add(name.lower())
        else:
            raise StateError(
                f"{name!r} cannot be in the server's certificate: write it in its ASCII form"
            )
    wildcards = {address for address in addresses if address.is_unspecified}
    for wildcard in wildcards:
        # The IPv6 wildcard takes in IPv4 connections, too.
        own = local_addresses()
        addresses |= own if wildcard.version == 6 else {a for a in own if a.version == 4}
    return hosts, addresses - wildcards
