"""The hub's identity as a service: its two certificates, their renewal, and the TLS contexts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.hub.identity.authorities import ClusterAuthorities
from yurttunnel.hub.identity.bootstrap import Bootstrap
from yurttunnel.hub.identity.issuer import HubIssuer
from yurttunnel.hub.interfaces import IIdentity
from yurttunnel.hub.settings import BootstrapSettings
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL, OptionalCallerContexts
from yurttunnel.pki.certificate_store import DatedStore, open_certificate_directory
from yurttunnel.pki.certificate_template import (
    HUB_PREFIX,
    HUB_SERVER_PREFIX,
    hub_client_template,
    hub_serving_template,
)
from yurttunnel.pki.contexts import ClientContexts, ExpectedServer
from yurttunnel.pki.directory import make_private_directory
from yurttunnel.pki.discovery import BootstrapToken
from yurttunnel.pki.issuer import Address, CertificateTemplate
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import CLUSTER_SCHEDULE
from yurttunnel.pki.trust import Trust
from yurttunnel.tunnel.reactor import IReactor

PKI_DIRECTORY = "pki"
"""The directory in ``--root-dir``, the same as upstream's."""

_STORE_RETRY_SECONDS = 60.0
"""The interval in seconds of attempts to store the authorities."""

EXPECTED = ExpectedServer(
    "an authority of this node's cluster (ca.crt of --root-dir). If --server-addr leads to another"
    " cluster now, stop the hub, empty --root-dir and --disk-cache-path, and start it with"
    " --bootstrap-file and --discovery-token-ca-cert-hash of that one",
    "or see --server-addr",
)
"""The advice for API servers that are not trusted."""


class ServingContexts(OptionalCallerContexts):
    """Contexts for listeners without client certificates: tokens identify pods."""

    _mode = SSL.VERIFY_NONE


@implementer(IIdentity)
class HubIdentity(Trust):
    """Obtains and renews the certificates of a hub; those on disk are available at once.

    ``serving_addresses()`` returns the addresses in the certificate for pods; it may raise
    ``TemplateUnknown``. ``serving`` are the contexts of listeners, ``None`` until that certificate
    exists. The ``on_serving`` callbacks are called when they are created.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        node: str,
        servers: Sequence[str],
        root_dir: Path,
        bootstrap: BootstrapSettings,
        serving_addresses: Callable[[], Collection[Address]],
    ) -> None:
        """Load the files of an earlier run from ``root_dir``; raise :class:`StateError`."""
        self.node: ClientContexts | None = None
        self.anonymous: ClientContexts | None = None
        self.serving: ServingContexts | None = None
        self.on_serving: list[Callable[[], object]] = []
        make_private_directory(root_dir)
        directory = open_certificate_directory(root_dir / PKI_DIRECTORY)
        self._authorities = ClusterAuthorities(
            reactor, directory, bootstrap.pins, self.authorities_changed
        )
        self._bootstrap = Bootstrap(reactor, bootstrap, self._authorities)
        # Whether there is a new certificate whose bootstrap credentials still exist.
        self._is_new = False
        # Whether the API has rejected the current certificate.
        self._is_refused = False

        def renewal(
            name: str,
            prefix: str,
            template: CertificateTemplate,
            current: Callable[[], CertificateTemplate],
            bootstrap: Bootstrap | None,
        ) -> CertificateRenewal:
            return CertificateRenewal(
                reactor,
                name,
                HubIssuer(
                    reactor,
                    servers,
                    template,
                    self._authorities,
                    lambda: self.certificate,
                    bootstrap,
                ),
                DatedStore(reactor, directory, prefix),
                CLUSTER_SCHEDULE,
                current,
                lambda certificate: self._misfit(certificate, template.common_name),
                self._authorities.current or None,
            )

        client = hub_client_template(node, bootstrap.organizations)
        self.certificate = renewal(
            f"certificate of node {node}", HUB_PREFIX, client, lambda: client, self._bootstrap
        )
        self.serving_certificate = renewal(
            f"certificate of node {node} for pods",
            HUB_SERVER_PREFIX,
            hub_serving_template(node, ()),
            lambda: hub_serving_template(node, serving_addresses()),
            None,
        )
        super().__init__(
            reactor,
            {"client": self.certificate, "server": self.serving_certificate},
            lambda: self._authorities.current,
            self._authorities.warning,
        )
        self.certificate.on_change.append(lambda _: self._certificate_changed())
        storing = Reconciler(
            reactor, _STORE_RETRY_SECONDS, "storing the cluster's authorities", self._retry_storing
        )
        for part in (self._authorities, storing):
            part.setServiceParent(self)
        self._update()

    def set_token(self, token: BootstrapToken) -> bool:
        """Join with this token if necessary; return whether it is."""
        self._bootstrap.set_token(token)
        if self.certificate.is_usable and not self._is_refused:
            return False
        # The token makes joining possible.
        self.note_acceptance(not self._is_refused)
        self.certificate.retry_now()
        return True

    def note_acceptance(self, is_accepted: bool) -> None:
        """See :class:`IIdentity`; a rejected certificate is replaced once the hub can join."""
        self._is_refused = not is_accepted
        self.certificate.set_rejected(self._is_refused and self._bootstrap.is_possible)

    def problem(self) -> str | None:
        """Return why there is no valid certificate, ``None`` if there is one."""
        return self.certificate.problem()

    def warning(self) -> str | None:
        """Return what cannot be renewed or stored, while the current files still work."""
        return self.certificate.warning() or self._authorities.warning()

    def serving_problem(self) -> str | None:
        """Return the problem of the certificate for pods."""
        return self.serving_certificate.problem() or self.serving_certificate.warning()

    def _certificate_changed(self) -> None:
        self._is_refused = False
        self._is_new = True
        self._remove_bootstrap()

    async def _retry_storing(self) -> None:
        self._authorities.retry_storing()
        self._remove_bootstrap()

    def _remove_bootstrap(self) -> None:
        """Remove the bootstrap credentials once they are not needed after a restart."""
        is_stored = self.certificate.storage_error is None and self._authorities.is_stored
        if self._is_new and is_stored:
            self._is_new = False
            self._bootstrap.remove_credentials()

    def _update(self) -> None:
        """Create or update the TLS contexts."""
        super()._update()
        if not self._authorities.current:
            return
        if self.node is None and self.certificate.current is not None:
            credentials = partial(self.credentials, self.certificate)
            make = partial(ClientContexts, protocol=HTTP_PROTOCOL, expected=EXPECTED)
            self.node = self._live.follow(credentials, make)
            self.anonymous = self._live.follow(
                credentials, partial(make, present_certificate=False)
            )
        if self.serving is None and self.serving_certificate.current is not None:
            credentials = partial(self.credentials, self.serving_certificate)
            self.serving = self._live.follow(credentials, ServingContexts)
            for callback in self.on_serving:
                callback()

    def _misfit(self, certificate: x509.Certificate, name: str) -> str | None:
        """Complete the sentence "the certificate ..." if this node cannot use it in its cluster."""
        if not self._authorities.current:
            return f"cannot be used without the cluster's authorities in {self._authorities.path}"
        try:
            attributes = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except ValueError as error:
            return f"is malformed: {error}"
        found = [each.value for each in attributes]
        return None if found == [name] else f"is for {found!r} and not for {name!r}"
