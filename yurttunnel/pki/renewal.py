"""The service that gets a certificate from an issuer and replaces it in good time.

The rules are those of the certificate manager of k8s.io/client-go (``util/certificate``): a new
certificate is asked for when there is none, when most of the life of the one in use is over, when
that lacks a name that is wanted, and when its authority is none of those that peers believe. What
is in use stays in use meanwhile.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.backoff import doubled
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.authority import BACKDATED, utc_now
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.credentials import Credentials, PrivateKey, new_key
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import (
    Denied,
    IssuedCertificate,
    Issuer,
    NotIssued,
    Template,
    obtain,
)
from yurttunnel.pki.metrics import RequestCounters

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the template and at the clock."""
SETTLE_TIME = 3.0
"""Seconds for which the wanted names have to stay the same before they cost a new request."""
PATIENCE = 60.0
"""Seconds that a request may take before it is worth a word while another one is in use."""
FIRST_FOREIGN_PAUSE = 60.0
LONGEST_FOREIGN_PAUSE = 86400.0
"""Seconds until a certificate is asked for again that none of the authorities has issued, or that
begins in the future: doubled each time, since that is either the middle of a rotation or the
cluster's configuration, and a clock that may stay as it is."""
_STORED_AGAIN = 60.0
"""Seconds at most between two attempts to keep a certificate for a restart."""

_FOREIGN = (
    "is not from an authority in the cluster's bundle, so whoever verifies it by that refuses it:"
    " see --cluster-signing-cert-file of kube-controller-manager"
)


class TemplateUnknown(Exception):
    """It is not known at this time what a certificate is to be like; one line says why."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a certificate is renewed, and when attempts that failed are made again.

    It is renewed when between ``renewed_from`` and ``renewed_until`` of its life are over, at
    random so that those that were issued together are not renewed together. Pauses are doubled
    from the first to the longest, and up to ``spread`` of that longer, seconds all: ``pauses``
    while there is no certificate that is good, else ``patient_pauses``, which are shorter for a
    short life and toward its end, so that there is always time for several attempts.
    """

    renewed_from: float
    renewed_until: float
    pauses: tuple[float, float]
    patient_pauses: tuple[float, float]
    spread: float

    def renewal_at(self, begin: datetime.datetime, end: datetime.datetime) -> datetime.datetime:
        """Choose when a certificate of this life is renewed."""
        return begin + (end - begin) * random.uniform(self.renewed_from, self.renewed_until)

    def pause(self, failures: int, life: float, left: float) -> float:
        """Return the pause after so many failures; none of the life is left without a good one."""
        first, longest = self.pauses
        if left > 0:
            first = min(self.patient_pauses[0], life / 100)
            longest = max(first, min(self.patient_pauses[1], left / 8))
        return doubled(failures - 1, first, longest) * random.uniform(1.0, 1.0 + self.spread)


CLUSTER_SCHEDULE = Schedule(0.7, 0.9, (2.0, 32.0), (2.0, 32.0), 0.1)
"""That of k8s.io/client-go (``nextRotationDeadline``, and the backoff of ``util/certificate``)."""
STANDALONE_SCHEDULE = Schedule(0.6, 2 / 3, (0.25, 15.0), (60.0, 300.0), 1.0)
"""Early, and after an outage by and by: one server issues the certificates of many nodes."""


@dataclass(slots=True)
class _Held:
    """A certificate in use, with the time from which it is to be renewed.

    ``is_foreign`` says that none of the authorities has issued it that those have who verify it.
    ``began`` is when it was issued. What was wrong with it from the beginning is a reason for
    another one from ``replaced_from`` on, which is in seconds of the clock that nobody sets.
    """

    issued: IssuedCertificate
    began: datetime.datetime
    renewal_at: datetime.datetime
    is_foreign: bool
    replaced_from: float

    @property
    def not_after(self) -> datetime.datetime:
        return self.issued.certificate.not_valid_after_utc

    @property
    def life(self) -> float:
        return max(1.0, (self.not_after - self.began).total_seconds())

    def is_usable(self, now: datetime.datetime) -> bool:
        return now < self.not_after

    def begins_later(self, now: datetime.datetime) -> bool:
        return now < self.issued.certificate.not_valid_before_utc

    def fault(self, now: datetime.datetime, seconds: float, desired: Template | None) -> str | None:
        """Complete "the one in use ..." when another is needed; ``desired`` may be left out."""
        if not self.is_usable(now):
            return "has expired"
        if seconds >= self.replaced_from:
            if self.begins_later(now):
                # A clock that went ahead has made it: to others it is not good yet.
                return "begins in the future"
            if self.is_foreign:
                return "is not from an authority of the cluster"
        problem = None if desired is None else desired.problem(self.issued.certificate)
        if problem is None and now >= self.renewal_at:
            return "is near its end"
        return problem


@dataclass(slots=True)
class _Attempt:
    """One request, from its creation to the certificate."""

    template: Template
    begun: float
    waits: str = ""
    abandoned: bool = False
    ended: Deferred[None] | None = None


class CertificateRenewal(Reconciler):
    """Holds one certificate that is as ``template()`` says, which may change at any time.

    ``name`` is for messages: "serving certificate". ``template`` may raise
    :class:`TemplateUnknown`. The one in ``store`` is used until there is better, even one that has
    expired by a clock that may be wrong, unless ``misfit(certificate)`` says what is wrong with it.
    ``authorities`` are those from which certificates have to be, ``None`` for any. ``key()`` gives
    the key for which a certificate is asked.

    ``on_change`` are called with each certificate that comes into use after the stored one.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        name: str,
        issuer: Issuer,
        store: CertificateStore,
        schedule: Schedule,
        template: Callable[[], Template],
        misfit: Callable[[x509.Certificate], str | None],
        authorities: Sequence[x509.Certificate] | None = None,
        key: Callable[[], PrivateKey] = new_key,
    ) -> None:
        super().__init__(clock, LOOK_INTERVAL, f"managing the {name}", self._look)
        self._clock = clock
        self._name = name
        self._issuer = issuer
        self._store = store
        self._schedule = schedule
        self._template = template
        self._authorities = authorities
        self._key = key
        # What is wanted, and since when it has been the same.
        self._desired: Template | None = None
        self._desired_since = 0.0
        self._unknown: str | None = "nobody has looked yet what is wanted of it"
        # How the attempts have gone.
        self._attempt: _Attempt | None = None
        self._failures = 0
        self._failure: str | None = None
        self._kind: type[Exception] | None = None
        self._final: Exception | None = None
        # In seconds of the clock that nobody sets: the time of day may be years ahead now.
        self._next_attempt = 0.0
        self._to_store: IssuedCertificate | None = None
        self._next_storing = 0.0
        self.not_stored: StateError | None = None
        """Why the certificate in use is not kept for a restart."""
        self._foreign_pause = FIRST_FOREIGN_PAUSE
        self._ready: list[Deferred[None]] = []
        self.counters = RequestCounters()
        self.on_change: list[Callable[[IssuedCertificate], object]] = []
        stored = self._load(misfit)
        self._held = None if stored is None else self._loaded(stored)
        self._has_been_usable = self.is_usable

    @property
    def current(self) -> IssuedCertificate | None:
        """The certificate in use; ``None`` before the first one."""
        return None if self._held is None else self._held.issued

    def credentials(self, authorities: Sequence[x509.Certificate] | None = None) -> Credentials:
        """Join the certificate in use with ``authorities``, by default those of its chain.

        There has to be one.
        """
        if self._held is None:
            raise ValueError(f"there is no {self._name} yet")
        issued = self._held.issued
        return issued.credentials(issued.chain if authorities is None else authorities)

    @property
    def not_after(self) -> datetime.datetime | None:
        """When the certificate in use ends, in UTC."""
        return None if self._held is None else self._held.not_after

    @property
    def is_usable(self) -> bool:
        """Whether there is a certificate that has not expired."""
        return self._held is not None and self._held.is_usable(utc_now(self._clock))

    def when_ready(self) -> Deferred[None]:
        """Fire when there is a certificate that can be used; cancelling ends the waiting.

        Fails with what is final for the issuer when there is none.
        """
        if self.is_usable:
            return succeed(None)
        if self._final is not None:
            return fail(self._final)
        waiting: Deferred[None] = Deferred(self._ready.remove)
        self._ready.append(waiting)
        return waiting

    def authorities_changed(self, authorities: Sequence[x509.Certificate]) -> None:
        """Have the certificate replaced unless it is from one of the new ``authorities``."""
        self._authorities = authorities
        self._foreign_pause = FIRST_FOREIGN_PAUSE
        if self._held is not None:
            self._held.is_foreign = self._is_foreign(self._held.issued)
            self._held.replaced_from = 0.0

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
        if self._failure is not None or waits_long:
            return (
                f"the {self._name}, good until {self.not_after:%F %T} UTC, is not renewed:"
                f" {self._state()}"
            )
        if self._unknown is not None:
            return f"the {self._name} is not kept up to date: {self._unknown}"
        if self._held is not None and self._held.is_foreign:
            return f"the {self._name} {_FOREIGN}"
        if self.not_stored is not None:
            return self._without_store(self.not_stored)
        return None

    def _state(self) -> str:
        """Return what is under way, what went wrong before, or what is missing to begin."""
        if self._attempt is not None and self._attempt.waits:
            before = f" (before that: {self._failure})" if self._failure else ""
            return f"{self._attempt.waits}{before}"
        return self._failure or self._unknown or "it is asked for"

    def _without_store(self, error: StateError) -> str:
        return f"the {self._name} is in use but not kept for a restart: {error}"

    def stopService(self) -> Deferred[bool]:
        """Give up what is under way."""
        stopped = super().stopService()
        ended = None if self._attempt is None else self._abandon(self._attempt)
        return stopped if ended is None else Deferred.fromCoroutine(_both(stopped, ended))

    def ask_anew(self) -> None:
        """Give up what is under way, and ask without a pause: there is another way to do so."""
        if self._attempt is not None:
            self._abandon(self._attempt)
        self._no_failure()
        if self.running:
            self.look()

    def look(self) -> None:
        """Do what is due; a certificate that its issuer issues at once is there then."""
        if self.is_usable:
            if not self._has_been_usable:
                # It had expired by a clock that has been set since.
                if self._attempt is not None:
                    self._abandon(self._attempt)
                self._no_failure()
            self._usable()
        template = self._look_at_template()
        if template is not None:
            self._look_at_attempt(template)
        if self._to_store is not None and self._clock.seconds() >= self._next_storing:
            self._keep(self._to_store)

    async def _look(self) -> None:
        self.look()

    def _look_at_attempt(self, desired: Template) -> None:
        attempt = self._attempt
        is_settled = self._clock.seconds() - self._desired_since >= SETTLE_TIME
        if attempt is not None:
            if is_settled and not attempt.template.covers(desired):
                self._log.info(
                    "the {name} is asked for again: what is wanted of it has changed",
                    name=self._name,
                )
                self._abandon(attempt)
        elif self._clock.seconds() >= self._next_attempt:
            reason = self._reason(desired if is_settled else None)
            if reason is not None:
                self._begin(desired, reason)
            else:
                self._no_failure()

    def _reason(self, settled: Template | None) -> str | None:
        """Return why a certificate is to be asked for; ``None`` when the one in use does."""
        if self._held is None:
            return "there is none"
        fault = self._held.fault(utc_now(self._clock), self._clock.seconds(), settled)
        return None if fault is None else f"the one in use {fault}"

    # -- What is wanted ------------------------------------------------------------------------

    def _look_at_template(self) -> Template | None:
        """Return what is wanted now, ``None`` while that is not known."""
        try:
            template = self._template()
        except TemplateUnknown as error:
            self._became_unknown(str(error))
            return None
        except Exception as error:
            # Of those who make it; what there is stays in use, and is asked about again.
            if self._unknown is None:
                self._log.failure("finding out what the {name} is for failed", name=self._name)
            self._became_unknown(f"internal error: {error!r}")
            return None
        self._unknown = None
        last = self._desired
        if last is None or not (last.covers(template) and template.covers(last)):
            self._desired = template
            self._desired_since = self._clock.seconds()
        return template

    def _became_unknown(self, why: str) -> None:
        if why != self._unknown:
            self._log.info("what the {name} is for is not known: {why}", name=self._name, why=why)
        self._unknown = why

    # -- One attempt ---------------------------------------------------------------------------

    def _begin(self, template: Template, reason: str) -> None:
        if self._failure is None:
            self._log.info("asking for the {name}: {reason}", name=self._name, reason=reason)
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
            issued = await obtain(self._clock, self._issuer, attempt.template, self._key(), waits)
        except (CancelledError, NotIssued) as error:
            if not attempt.abandoned:
                self._failed(error)
        except self._issuer.final as error:
            if not attempt.abandoned:
                self._failed(error, is_final=True)
        except Exception as error:
            # A defect is one more reason to try again: without a certificate nothing works.
            self._log.failure("Defect: the {name} cannot be asked for", name=self._name)
            self._failed(error)
        else:
            self._succeeded(issued)
        finally:
            self._attempt = None

    def _failed(self, error: Exception, is_final: bool = False) -> None:
        if isinstance(error, Denied):
            self.counters.denied += 1
        else:
            self.counters.failed += 1
        self._failures += 1
        self._failure = self._with_clock(" ".join(str(error).split()) or type(error).__name__)
        life, left = 0.0, 0.0
        if self._held is not None:
            life = self._held.life
            left = (self._held.not_after - utc_now(self._clock)).total_seconds()
        pause = self._schedule.pause(self._failures, life, left)
        self._next_attempt = self._clock.seconds() + pause
        # Of one that has expired it may be the clock that is wrong.
        self._final = error if is_final and self._held is None else None
        if self._final is not None:
            while self._ready:
                self._ready.pop(0).errback(self._final)
        # An outage of days is not worth thousands of lines: the 1st, 2nd, 4th, 8th ... is.
        elif type(error) is not self._kind or self._failures.bit_count() == 1:
            self._log.error(
                "the {name} was not obtained: {error}; {failures} attempts have failed now, the"
                " next one is in {pause:.1f} seconds",
                name=self._name,
                error=self._failure,
                failures=self._failures,
                pause=pause,
            )
        self._kind = type(error)

    def _with_clock(self, failure: str) -> str:
        """Add what else may be wrong when a stored certificate has never been good here."""
        if self._held is None or self._has_been_usable:
            return failure
        return (
            f"the clock of this machine says {utc_now(self._clock):%F %T} UTC, and the {self._name}"
            f" ended at {self._held.not_after:%F %T} UTC. If the clock is wrong, set it: that is"
            f" waited for. If it is right, a new one is needed: {failure}"
        )

    def _succeeded(self, issued: IssuedCertificate) -> None:
        self.counters.issued += 1
        self._no_failure()
        self._held = self._taken_up(issued)
        self._log.info(
            "the {name} is new and good until {end:%F %T} UTC",
            name=self._name,
            end=self.not_after,
        )
        self._keep(issued)
        for callback in self.on_change:
            try:
                callback(issued)
            except Exception:
                # The certificate is good, and the others have to use it.
                self._log.failure("Defect: a new {name} cannot be used by all", name=self._name)
        self._usable()

    def _no_failure(self) -> None:
        self._failures = 0
        self._kind = None
        self._failure = None
        self._final = None
        self._next_attempt = 0.0

    def _usable(self) -> None:
        """Tell those who wait that there is a certificate."""
        self._has_been_usable = True
        while self._ready:
            self._ready.pop(0).callback(None)

    # -- The certificate -----------------------------------------------------------------------

    def _is_foreign(self, issued: IssuedCertificate) -> bool:
        return self._authorities is not None and not issued.is_from(self._authorities)

    def _loaded(self, issued: IssuedCertificate) -> _Held:
        """Take up one of an earlier run, perhaps of an authority that is no more."""
        certificate = issued.certificate
        began = certificate.not_valid_before_utc
        end = certificate.not_valid_after_utc
        renewal_at = self._schedule.renewal_at(min(began + BACKDATED, end), end)
        return _Held(issued, began, renewal_at, self._is_foreign(issued), 0.0)

    def _taken_up(self, issued: IssuedCertificate) -> _Held:
        """Take up one that was issued just now.

        Its life begins now: certificates are dated back, and of a short one the most could be
        over already. If it is foreign or begins later, the next one will do so, too, unless the
        cluster changes its signer meanwhile, or somebody the clock.
        """
        now = utc_now(self._clock)
        replaced_from = self._clock.seconds() + self._foreign_pause
        renewal_at = self._schedule.renewal_at(now, issued.certificate.not_valid_after_utc)
        held = _Held(issued, now, renewal_at, self._is_foreign(issued), replaced_from)
        if held.is_foreign or held.begins_later(now):
            self._foreign_pause = min(2 * self._foreign_pause, LONGEST_FOREIGN_PAUSE)
        else:
            self._foreign_pause = FIRST_FOREIGN_PAUSE
        if held.is_foreign:
            self._log.error("the {name} {problem}", name=self._name, problem=_FOREIGN)
        return held

    def _load(self, misfit: Callable[[x509.Certificate], str | None]) -> IssuedCertificate | None:
        try:
            issued = self._store.load()
        except StateError as error:
            self._log.warn("{error}; a new certificate is asked for", error=error)
            return None
        if issued is None:
            return None
        problem = misfit(issued.certificate)
        if problem is None:
            return issued
        self._log.warn(
            "the certificate in {path} {problem}; a new one is asked for",
            path=self._store.path,
            problem=problem,
        )
        return None

    def _keep(self, issued: IssuedCertificate) -> None:
        try:
            self._store.save(issued)
        except StateError as error:
            if str(error) != str(self.not_stored):
                self._log.error("{problem}", problem=self._without_store(error))
            self._to_store, self.not_stored = issued, error
            life = 0.0 if self._held is None else self._held.life
            self._next_storing = self._clock.seconds() + min(_STORED_AGAIN, life / 100)
        else:
            self._to_store = self.not_stored = None


async def _both(stopped: Deferred[bool], ended: Deferred[None]) -> bool:
    await ended
    return await stopped
