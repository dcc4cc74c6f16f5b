"""The authorities of the node's cluster, stored in ``ca.crt`` for offline starts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.authorities import Authorities, AuthorityBundle, BadBundle
from yurttunnel.pki.credentials import certificates_to_pem, load_certificates, pin_of
from yurttunnel.pki.directory import StateDirectory, StateError

CA_FILE = "ca.crt"


class ClusterAuthorities(MultiService):
    """The authorities that the node trusts; ``current`` is empty while they are unknown.

    The service follows the file, which an operator may replace. ``use(authorities)`` is called
    after each change, and may raise an exception: then the previous authorities stay. A file
    without any of the ``pins``, if there are pins, is from another cluster.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        directory: StateDirectory,
        pins: Collection[str],
        use: Callable[[Authorities], object],
    ) -> None:
        super().__init__()
        self._clock = clock
        self._directory = directory
        self._use = use
        self._bundle: AuthorityBundle | None = None
        self._not_stored: str | None = None
        self.current = self._load(pins)
        if self.current:
            self._follow()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._directory.path / CA_FILE

    @property
    def is_stored(self) -> bool:
        """Whether the current authorities will be available after a restart."""
        return self._not_stored is None

    def pem(self) -> bytes:
        """Return the authorities in PEM form."""
        return certificates_to_pem(self.current)

    def trust(self, authorities: Authorities) -> None:
        """Trust these authorities from now on, and after a restart."""
        if authorities == self.current:
            return
        self._change(authorities)
        self._store()

    def retry_storing(self) -> None:
        """Retry a failed write of the file."""
        if not self.is_stored:
            self._store()

    def warning(self) -> str | None:
        """Return the problem of the file while the previous authorities are in use."""
        return self._not_stored or (None if self._bundle is None else self._bundle.problem)

    def _store(self) -> None:
        try:
            self._directory.write(CA_FILE, self.pem())
        except StateError as error:
            problem = f"the cluster's authorities are in use but not stored for a restart: {error}"
            if problem != self._not_stored:
                self._log.error("{problem}", problem=problem)
            self._not_stored = problem
        else:
            self._not_stored = None
            if self._bundle is None:
                self._follow()

    def _change(self, authorities: Authorities) -> None:
        if authorities != self.current:
            previous, self.current = self.current, authorities
            try:
                self._use(authorities)
            except Exception:
                # Restored after any error, which the caller reports.
                self.current = previous
                raise

    def _load(self, pins: Collection[str]) -> Authorities:
        try:
            found = load_certificates(self._directory, CA_FILE) or ()
        except StateError as error:
            self._log.warn("{error}; the cluster's authorities are discovered again", error=error)
            return ()
        if found and pins and not any(pin_of(each) in pins for each in found):
            self._log.warn(
                "{path} has none of the authorities in --discovery-token-ca-cert-hash, so it"
                " belongs to another cluster: they are discovered again",
                path=self.path,
            )
            return ()
        return found

    def _follow(self) -> None:
        try:
            self._bundle = AuthorityBundle.file(self._clock, self.path, self._change)
        except BadBundle as error:
            self._log.warn("{error}; it is not followed until the next start", error=error)
        else:
            self._bundle.setServiceParent(self)
