"""The desired template of a certificate, which may change at any time."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.issuer import Template

SETTLE_TIME = 3.0
"""Seconds for which the desired names have to be unchanged before a new request is made."""


class TemplateUnknown(Exception):
    """The desired template is not known at this time; one line describes why."""


class DesiredTemplate:
    """Watches the desired template of the certificate ``name``.

    ``template()`` returns it, or raises :class:`TemplateUnknown`. ``unknown`` is then the reason in
    one line, and ``None`` while the template is known.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, name: str, template: Callable[[], Template]) -> None:
        self._clock = clock
        self._name = name
        self._template = template
        self._last: Template | None = None
        # The time of the last change.
        self._changed_at = 0.0
        self.unknown: str | None = "its names have not been determined yet"

    @property
    def is_settled(self) -> bool:
        """Whether the template has been unchanged for long enough."""
        return self._clock.seconds() - self._changed_at >= SETTLE_TIME

    def refresh(self) -> Template | None:
        """Return the current template, ``None`` while it is not known."""
        try:
            template = self._template()
        except TemplateUnknown as error:
            self._set_unknown(str(error))
            return None
        except Exception as error:
            # A defect in ``template()``: the certificate stays in use, and the next look tries
            # again.
            if self.unknown is None:
                self._log.failure("determining the names of the {name} failed", name=self._name)
            self._set_unknown(f"internal error: {error!r}")
            return None
        self.unknown = None
        last = self._last
        if last is None or not (last.covers(template) and template.covers(last)):
            self._last = template
            self._changed_at = self._clock.seconds()
        return template

    def _set_unknown(self, why: str) -> None:
        if why != self.unknown:
            self._log.info("the names of the {name} are not known: {why}", name=self._name, why=why)
        self.unknown = why
