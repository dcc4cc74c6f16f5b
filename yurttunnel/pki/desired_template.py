"""What is wanted of a certificate at this time, and for how long it has been the same."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.certificate_template import CertificateTemplate

SETTLE_TIME = 3.0
"""Seconds for which the wanted names have to stay the same before they cost a new request."""


class TemplateUnknown(Exception):
    """It is not known at this time what a certificate is to be like; one line says why."""


class DesiredTemplate:
    """Asks ``template()`` at each look, and notices changes.

    ``unknown`` says why it is not known at present, ``None`` when it is.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, name: str, template: Callable[[], CertificateTemplate]
    ) -> None:
        self._clock = clock
        self._name = name
        self._template = template
        self._last: CertificateTemplate | None = None
        self._since = 0.0
        self.unknown: str | None = "nobody has looked yet what is wanted of it"

    @property
    def is_settled(self) -> bool:
        """Whether it is known and has been the same for a while: a burst of changes is over."""
        settled = self._clock.seconds() - self._since >= SETTLE_TIME
        return self.unknown is None and self._last is not None and settled

    def look(self) -> CertificateTemplate | None:
        """Return what is wanted now, ``None`` while that is not known."""
        try:
            template = self._template()
        except TemplateUnknown as error:
            self._became_unknown(str(error))
            return None
        except Exception as error:
            # Of those who make it; what there is stays in use, and is asked about again.
            if self.unknown is None:
                self._log.failure("finding out what the {name} is for failed", name=self._name)
            self._became_unknown(f"internal error: {error!r}")
            return None
        self.unknown = None
        if self._last is None or not self._last.is_same(template):
            self._last = template
            self._since = self._clock.seconds()
        return template

    def _became_unknown(self, why: str) -> None:
        if why != self.unknown:
            self._log.info("what the {name} is for is not known: {why}", name=self._name, why=why)
        self.unknown = why
