"""Credentials for the API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from twisted.internet.defer import Deferred, execute
from zope.interface import Interface, implementer

from yurttunnel.kube.reloaded_file import ReloadedFile
from yurttunnel.tunnel.reactor import IReactor


@dataclass(frozen=True, slots=True)
class Credentials:
    """A bearer token, or a certificate with its chain and its key in PEM form, or neither."""

    token: str = field(default="", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)


class ICredentialsSource(Interface):
    """A source of credentials."""

    def current(reactor: IReactor) -> Deferred[Credentials]:
        """Return the current credentials; fails with ``OSError`` or ``CredentialsUnavailable``."""

    def forget(refused: Credentials) -> None:
        """Note that the API has rejected ``refused``, which may not be the latest credentials."""


class CredentialsUnavailable(Exception):
    """There are no credentials at this time; the text describes why."""


@implementer(ICredentialsSource)
class FileCredentials(NamedTuple):
    """Credentials from files, or from the configuration itself."""

    token: ReloadedFile | str = ""
    certificate: ReloadedFile | bytes = b""
    key: ReloadedFile | bytes = b""

    def current(self, reactor: IReactor) -> Deferred[Credentials]:
        return execute(self._read)

    def forget(self, refused: Credentials) -> None:
        """Do nothing, since each call checks the files."""

    def _read(self) -> Credentials:
        token = self.token
        if isinstance(token, ReloadedFile):
            # Token files end with a newline.
            token = token.read().decode("ascii", "replace").strip()
        return Credentials(token, _content(self.certificate), _content(self.key))


def _content(source: ReloadedFile | bytes) -> bytes:
    return source.read() if isinstance(source, ReloadedFile) else source
