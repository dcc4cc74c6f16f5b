"""The bootstrap credentials of a hub without a certificate."""

from __future__ import annotations

import os

from twisted.logger import Logger

from yurttunnel.hub.identity.authorities import ClusterAuthorities
from yurttunnel.hub.settings import BootstrapMode, BootstrapSettings
from yurttunnel.kube.configuration import BadKubeConfiguration
from yurttunnel.kube.credentials import CredentialsUnavailable, FileCredentials
from yurttunnel.kube.reloaded_file import ReloadedFile
from yurttunnel.ops.plain_files import read_plain
from yurttunnel.pki.credentials import BadCredentials, certificates_from_pem
from yurttunnel.pki.discovery import BadBootstrapToken, BootstrapToken, DiscoveryFailed, discover
from yurttunnel.pki.issuer import NotIssued
from yurttunnel.tunnel.reactor import IReactor


class Bootstrap:
    """Finds the cluster's authorities, and the credentials for requesting the first certificate.

    The credentials are the last bootstrap token, or the kubelet's certificate. In the mode for the
    kubelet's certificate, a token is used first at each API server, and then alternates with the
    certificate there: the token may be wrong or expired.
    """

    _log = Logger()

    def __init__(
        self, reactor: IReactor, settings: BootstrapSettings, authorities: ClusterAuthorities
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._authorities = authorities
        self._token = settings.token
        # The servers whose last attempt used the token.
        self._tried_with_token: set[str] = set()

    @property
    def is_possible(self) -> bool:
        """Whether there are credentials for joining."""
        if self._token is not None:
            return True
        settings, file = self._settings, self._settings.file
        if settings.mode is BootstrapMode.KUBELET_CERTIFICATE:
            file = settings.kubelet_certificate
        # Path.exists raises an exception without permission for the directory.
        return file is not None and os.path.exists(file)

    def set_token(self, token: BootstrapToken) -> None:
        """Join with this token."""
        self._token = token
        self._tried_with_token.clear()

    async def credentials(self, server: str, skip: int) -> FileCredentials:
        """Return the credentials for the API server at the URL ``server``; load the authorities.

        The first ``skip`` addresses of the server's name are dialed last. Raises
        :class:`NotIssued` if something is missing.
        """
        if self._uses_kubelet(server):
            return self._kubelet_credentials()
        token = self._token or await self._token_in_file()
        await self._find_authorities(server, token, skip)
        return FileCredentials(token=token.bearer)

    def remove_credentials(self) -> None:
        """Remove the credentials: the certificate and the authorities are stored."""
        self._token = None
        file = self._settings.file
        if file is None or self._settings.mode is not BootstrapMode.TOKEN:
            return
        try:
            os.unlink(file)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warn(
                "{file} contains a bootstrap token and could not be removed after the node has"
                " joined ({reason}): remove it",
                file=file,
                reason=error.strerror,
            )
        else:
            self._log.info("{file} is removed: the node has joined", file=file)

    def _uses_kubelet(self, server: str) -> bool:
        settings = self._settings
        if settings.mode is not BootstrapMode.KUBELET_CERTIFICATE:
            return False
        if self._token is None:
            return True
        if server in self._tried_with_token and os.path.exists(settings.kubelet_certificate):
            self._tried_with_token.remove(server)
            return True
        self._tried_with_token.add(server)
        return False

    def _kubelet_credentials(self) -> FileCredentials:
        settings = self._settings
        pem = ReloadedFile(settings.kubelet_certificate)
        try:
            pem.read()
            self._authorities.trust(certificates_from_pem(read_plain(settings.kubelet_authorities)))
        except OSError as error:
            raise NotIssued(
                f"--bootstrap-mode=kubeletcertificate: {error.filename}: {error.strerror}"
            ) from None
        except BadCredentials as error:
            raise NotIssued(f"--kubelet-ca-file: {settings.kubelet_authorities}: {error}") from None
        return FileCredentials(certificate=pem, key=pem)

    async def _token_in_file(self) -> BootstrapToken:
        file = self._settings.file
        if file is None:
            raise NotIssued(
                "there are no credentials to join the cluster: give --bootstrap-file, or post a"
                " token (kubeadm token create) to /v1/token on --serve-port, as"
                ' curl -d \'{"jointoken": "..."}\' http://127.0.0.1:10267/v1/token'
            )
        # Imported here, because it takes time and memory, and only joining needs it.
        from yurttunnel.kube.kube_config import read_kube_config

        try:
            configuration = read_kube_config(file)
            found = await configuration.credentials.current(self._reactor)
            token = BootstrapToken.parse(found.token)
            pem = configuration.authorities()
            if pem:
                self._authorities.trust(certificates_from_pem(pem))
        except (
            BadKubeConfiguration,
            BadBootstrapToken,
            BadCredentials,
            CredentialsUnavailable,
            OSError,
        ) as error:
            raise NotIssued(f"--bootstrap-file: {error}") from None
        return token

    async def _find_authorities(self, server: str, token: BootstrapToken, skip: int) -> None:
        settings = self._settings
        if settings.pins or settings.skips_pins:
            try:
                found = await discover(self._reactor, server, token, settings.pins, skip)
            except DiscoveryFailed as error:
                raise NotIssued(str(error)) from None
            self._authorities.trust(found)
        elif not self._authorities.current:
            raise NotIssued(
                "the cluster cannot be authenticated: give --discovery-token-ca-cert-hash, or"
                " --bootstrap-file with certificate-authority-data"
            )
