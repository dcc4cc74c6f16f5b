"""What a certificate is to be like, which may change at any time, and when that has settled."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.issuer import Template

SETTLE_TIME = 3.0
"""Seconds for which the wanted names have to stay the same before they cost a new request."""


class TemplateUnknown(Exception):
    """It is not known at this time what a certificate is to be like; one line says why."""


class DesiredTemplate:
    """Follows what ``template()`` says of the certificate ``name``; it may raise
    :class:`TemplateUnknown`.

    ``unknown`` says in one line why that is not known now, ``None`` when it is.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, name: str, template: Callable[[], Template]) -> None:
        self._clock = clock
        self._name = name
        self._template = template
        self._last: Template | None = None
        # Since when it has been the same.
        self._since = 0.0
        self.unknown: str | None = "nobody has looked yet what is wanted of it"

    @property
    def is_settled(self) -> bool:
        """Whether it has stayed the same for long enough."""
        return self._clock.seconds() - self._since >= SETTLE_TIME

    def look(self) -> Template | None:
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
        last = self._last
        if last is None or not (last.covers(template) and template.covers(last)):
            self._last = template
            self._since = self._clock.seconds()
        return template

    def _became_unknown(self, why: str) -> None:
        if why != self.unknown:
            self._log.info("what the {name} is for is not known: {why}", name=self._name, why=why)
        self.unknown = why
