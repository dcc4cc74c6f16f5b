"""The service that gets a certificate from the cluster and replaces it in good time.

The rules are those of the certificate manager of k8s.io/client-go (``util/certificate``): a new
certificate is asked for when there is none, after 70 to 90 % of the life of the one in use, when
that lacks a name that is wanted, and when its authority is none of the cluster's any more. What
is in use stays in use meanwhile.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.kube.errors import ApiError, ApiUnreachable
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.certificate_requests import RequestFailed, request_certificate
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.certificate_template import CertificateTemplate, IssuedCertificate
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.desired_template import DesiredTemplate
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.held_certificate import HeldCertificate
from yurttunnel.pki.request_history import RequestHistory

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the template and at the clock."""
PATIENCE = 60.0
"""Seconds that a request may take before it is worth a word while another one is in use."""
FIRST_FOREIGN_PAUSE = 60.0
LONGEST_FOREIGN_PAUSE = 86400.0
"""Seconds until a certificate is asked for again that none of the authorities has issued: doubled
each time, since that is either the middle of a rotation or the cluster's configuration."""

_FOREIGN = (
    "is not from an authority in the cluster's bundle, so whoever verifies it by that refuses it:"
    " see --cluster-signing-cert-file of kube-controller-manager"
)


@dataclass(slots=True)
class _Attempt:
    """One request, from its creation to the certificate."""

    template: CertificateTemplate
    begun: float
    waits: str = "the request is being made"
    abandoned: bool = False
    ended: Deferred[None] | None = None


class CertificateManager(Reconciler):
    """Holds one certificate that is as ``template()`` says, which may change at any time.

    ``name`` is for messages: "serving certificate". ``template`` may raise ``TemplateUnknown``.
    ``purpose`` is the template without names: a stored certificate that fits it is used until
    there is better, and so is one that ``accepts(certificate)`` lets through.

    ``on_change`` are called with each certificate that comes into use after the stored one.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        store: CertificateStore,
        name: str,
        purpose: CertificateTemplate,
        template: Callable[[], CertificateTemplate],
        authorities: Sequence[x509.Certificate],
        accepts: Callable[[x509.Certificate], bool] = lambda certificate: False,
    ) -> None:
        super().__init__(clock, LOOK_INTERVAL, f"managing the {name}", self._look)
        self._clock = clock
        self._client = client
        self._store = store
        self._name = name
        self._desired = DesiredTemplate(clock, name, template)
        self._attempt: _Attempt | None = None
        self._history = RequestHistory(clock, name)
        self._not_stored: str | None = None
        self._ready: list[Deferred[None]] = []
        self.counters = self._history.counters
        self.on_change: list[Callable[[IssuedCertificate], object]] = []
        stored = self._load(purpose, accepts)
        self._authorities = authorities
        self._foreign_pause = FIRST_FOREIGN_PAUSE
        self._held = None if stored is None else HeldCertificate.loaded(stored, authorities)

    @property
    def current(self) -> IssuedCertificate | None:
        """The certificate in use; ``None`` before the first one."""
        return None if self._held is None else self._held.issued

    def credentials(self, authorities: Sequence[x509.Certificate]) -> Credentials:
        """Join the certificate in use with ``authorities``; there has to be one."""
        if self._held is None:
            raise ValueError(f"there is no {self._name} yet")
        return self._held.issued.credentials(authorities)

    @property
    def not_after(self) -> datetime.datetime | None:
        """When the certificate in use ends, in UTC."""
        return None if self._held is None else self._held.not_after

    @property
    def is_usable(self) -> bool:
        """Whether there is a certificate that has not expired."""
        return self._held is not None and self._held.is_usable(utc_now(self._clock))

    def when_ready(self) -> Deferred[None]:
        """Fire when there is a certificate that can be used; cancelling ends the waiting."""
        if self.is_usable:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._ready.remove)
        self._ready.append(waiting)
        return waiting

    def authorities_changed(self, authorities: Sequence[x509.Certificate]) -> None:
        """Have the certificate replaced unless it is from one of the new ``authorities``."""
        self._authorities = authorities
        self._foreign_pause = FIRST_FOREIGN_PAUSE
        if self._held is not None:
            self._held.compare(authorities)

    def problem(self) -> str | None:
        """Return why there is no certificate that can be used, if there is none."""
        if self.is_usable:
            return None
        if self.not_after is None:
            return f"there is no {self._name} yet: {self._state()}"
        return f"the {self._name} has expired at {self.not_after:%F %T} UTC: {self._state()}"

    def warning(self) -> str | None:
        """Return what keeps the certificate in use from being replaced, or from being kept."""
        if not self.is_usable:
            return None
        attempt = self._attempt
        now = self._clock.seconds()
        waits_long = attempt is not None and now - attempt.begun > PATIENCE
        if self._history.failure is not None or waits_long:
            return (
                f"the {self._name}, good until {self.not_after:%F %T} UTC, is not replaced:"
                f" {self._state()}"
            )
        if self._desired.unknown is not None:
            return f"the {self._name} is not kept up to date: {self._desired.unknown}"
        if self._held is not None and self._held.is_foreign:
            return f"the {self._name} {_FOREIGN}"
        return self._not_stored

    def _state(self) -> str:
        """Return what is under way, what went wrong before, or what is missing to begin."""
        failure = self._history.failure
        if self._attempt is not None:
            before = f" (before that: {failure})" if failure else ""
            return f"{self._attempt.waits}{before}"
        return failure or self._desired.unknown or "it is about to be asked for"

    def stopService(self) -> Deferred[bool]:
        """Give up what is under way."""
        stopped = super().stopService()
        ended = None if self._attempt is None else self._abandon(self._attempt)
        return stopped if ended is None else Deferred.fromCoroutine(_both(stopped, ended))

    async def _look(self) -> None:
        desired = self._desired.look()
        if desired is None:
            return
        attempt = self._attempt
        if attempt is not None:
            if self._desired.is_settled and not attempt.template.covers(desired):
                self._log.info(
                    "the {name} is asked for again: what is wanted of it has changed",
                    name=self._name,
                )
                self._abandon(attempt)
        elif self._history.is_due:
            reason = self._reason(desired)
            if reason is not None:
                self._begin(desired, reason)

    def _reason(self, desired: CertificateTemplate) -> str | None:
        """Return why a certificate is to be asked for; ``None`` when the one in use does."""
        if self._held is None:
            return "there is none"
        settled = desired if self._desired.is_settled else None
        fault = self._held.fault(utc_now(self._clock), settled)
        return None if fault is None else f"the one in use {fault}"

    # -- One attempt ---------------------------------------------------------------------------

    def _begin(self, template: CertificateTemplate, reason: str) -> None:
        if self._history.failure is None:
            self._log.info(
                "asking the cluster for the {name}: {reason}", name=self._name, reason=reason
            )
        attempt = _Attempt(template, self._clock.seconds())
        self._attempt = attempt
        attempt.ended = Deferred.fromCoroutine(self._obtain(attempt))

    def _abandon(self, attempt: _Attempt) -> Deferred[None] | None:
        attempt.abandoned = True
        if attempt.ended is not None:
            attempt.ended.cancel()
        return attempt.ended

    async def _obtain(self, attempt: _Attempt) -> None:
        def waits(sentence: str) -> None:
            attempt.waits = sentence
            self._log.info("the {name}: {sentence}", name=self._name, sentence=sentence)

        try:
            issued = await request_certificate(self._clock, self._client, attempt.template, waits)
        except (CancelledError, RequestFailed, ApiError, ApiUnreachable) as error:
            if not attempt.abandoned:
                self._history.failed(error)
        except Exception as error:
            # A defect is one more reason to try again: without a certificate nothing works.
            self._log.failure("Defect: the {name} cannot be asked for", name=self._name)
            self._history.failed(error)
        else:
            self._succeeded(issued)
        finally:
            self._attempt = None

    def _succeeded(self, issued: IssuedCertificate) -> None:
        self._history.succeeded()
        self._held = self._taken_up(issued)
        self._log.info(
            "the {name} is new and good until {end:%F %T} UTC",
            name=self._name,
            end=self.not_after,
        )
        self._save(issued)
        for callback in self.on_change:
            try:
                callback(issued)
            except Exception:
                # The certificate is good, and the others have to use it.
                self._log.failure("Defect: a new {name} cannot be used by all", name=self._name)
        self._fire_ready()

    def _taken_up(self, issued: IssuedCertificate) -> HeldCertificate:
        pause = datetime.timedelta(seconds=self._foreign_pause)
        now = utc_now(self._clock)
        held = HeldCertificate.obtained(issued, self._authorities, now, pause)
        if held.is_foreign:
            self._foreign_pause = min(2 * self._foreign_pause, LONGEST_FOREIGN_PAUSE)
            self._log.error("the {name} {problem}", name=self._name, problem=_FOREIGN)
        else:
            self._foreign_pause = FIRST_FOREIGN_PAUSE
        return held

    def _fire_ready(self) -> None:
        while self._ready:
            self._ready.pop(0).callback(None)

    # -- The certificate -----------------------------------------------------------------------

    def _load(
        self, purpose: CertificateTemplate, accepts: Callable[[x509.Certificate], bool]
    ) -> IssuedCertificate | None:
        issued = self._store.load()
        if issued is None:
            return None
        problem = purpose.problem(issued.certificate)
        if problem is not None and accepts(issued.certificate):
            problem = None
        if utc_now(self._clock) >= issued.certificate.not_valid_after_utc:
            problem = "has expired"
        if problem is None:
            return issued
        self._log.warn(
            "the certificate in {path} {problem}; a new one is asked for",
            path=self._store.path,
            problem=problem,
        )
        return None

    def _save(self, issued: IssuedCertificate) -> None:
        try:
            self._store.save(issued)
        except StateError as error:
            self._not_stored = f"the {self._name} is in use but not kept for a restart: {error}"
            self._log.error("{problem}", problem=self._not_stored)
        else:
            self._not_stored = None


async def _both(stopped: Deferred[bool], ended: Deferred[None]) -> bool:
    await ended
    return await stopped
