"""The service that obtains a certificate from an issuer and renews it in time.

The rules are those of the certificate manager of k8s.io/client-go (``util/certificate``). A new
certificate is requested if there is none, or if the one in use is near its end, lacks a desired
name, or was issued by an authority that peers do not trust. The old one stays in use meanwhile.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.credentials import Credentials, PrivateKey, new_key
from yurttunnel.pki.current_certificate import CertificateHolder
from yurttunnel.pki.desired_template import DesiredTemplate
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import Denied, IssuedCertificate, Issuer, NotIssued, Template, obtain
from yurttunnel.pki.metrics import RequestCounters
from yurttunnel.pki.renewal_schedule import Schedule
from yurttunnel.pki.stored_certificate import StoredCertificate

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the template and the clock."""
PENDING_WARNING_SECONDS = 60.0
"""Seconds after which a pending request is reported while another certificate is in use."""

_FOREIGN = (
    "is not signed by an authority in the cluster's bundle, so peers that verify it with the"
    " bundle reject it: see --cluster-signing-cert-file of kube-controller-manager"
)


@dataclass(slots=True)
class _Attempt:
    """One request, from its creation to the certificate."""

    template: Template
    started_at: float
    waiting_for: str = ""
    abandoned: bool = False
    ended: Deferred[None] | None = None


class CertificateRenewal(Reconciler):
    """Keeps one certificate that matches ``template()``, which may change at any time.

    ``name`` is for messages: "serving certificate". ``template`` is that of
    :class:`~yurttunnel.pki.desired_template.DesiredTemplate`. The certificate in ``store`` is used
    until there is a better one, even if it has expired by a clock that may be wrong, unless
    ``find_problem(certificate)`` returns what is wrong with it. ``authorities`` are those that must
    issue the certificates, ``None`` for any. ``key()`` returns the key for a request.

    The functions in ``on_change`` are called with each new certificate, but not with the stored
    one.
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
        find_problem: Callable[[x509.Certificate], str | None],
        authorities: Sequence[x509.Certificate] | None = None,
        key: Callable[[], PrivateKey] = new_key,
    ) -> None:
        super().__init__(clock, CHECK_INTERVAL, f"managing the {name}", self._check)
        self._clock = clock
        self._name = name
        self._issuer = issuer
        self._schedule = schedule
        self._key = key
        self._desired = DesiredTemplate(clock, name, template)
        self._stored = StoredCertificate(clock, name, store)
        self._holder = CertificateHolder(
            clock, schedule, authorities, self._stored.load(find_problem)
        )
        self._has_been_usable = self.is_usable
        # The state of the attempts.
        self._attempt: _Attempt | None = None
        self._failures = 0
        self._failure: str | None = None
        self._failure_type: type[Exception] | None = None
        self._final_error: Exception | None = None
        # On the monotonic clock: the time of day may be years ahead.
        self._next_attempt = 0.0
        self._ready: list[Deferred[None]] = []
        self.counters = RequestCounters()
        self.on_change: list[Callable[[IssuedCertificate], object]] = []

    @property
    def current(self) -> IssuedCertificate | None:
        """The certificate in use; ``None`` before the first one."""
        current = self._holder.current
        return None if current is None else current.issued

    def credentials(self, authorities: Sequence[x509.Certificate] | None = None) -> Credentials:
        """Combine the certificate in use with ``authorities``, by default its chain.

        Raises ``ValueError`` without a certificate.
        """
        issued = self.current
        if issued is None:
            raise ValueError(f"there is no {self._name} yet")
        return issued.credentials(issued.chain if authorities is None else authorities)

    @property
    def not_after(self) -> datetime.datetime | None:
        """When the certificate in use expires, in UTC."""
        current = self._holder.current
        return None if current is None else current.not_after

    @property
    def is_usable(self) -> bool:
        """Whether there is a certificate that has not expired."""
        return self._holder.is_usable

    @property
    def is_rejected(self) -> bool:
        """Whether :meth:`set_rejected` has marked the certificate in use as rejected."""
        current = self._holder.current
        return current is not None and current.is_rejected

    @property
    def storage_error(self) -> StateError | None:
        """Why the certificate in use is not stored for a restart; ``None`` if it is."""
        return self._stored.problem

    def when_ready(self) -> Deferred[None]:
        """Fire when there is a usable certificate; cancelling ends the wait.

        Fails with the issuer's final error if there is none.
        """
        if self.is_usable:
            return succeed(None)
        if self._final_error is not None:
            return fail(self._final_error)
        waiting: Deferred[None] = Deferred(self._ready.remove)
        self._ready.append(waiting)
        return waiting

    def authorities_changed(self, authorities: Sequence[x509.Certificate]) -> None:
        """Set the authorities, and replace the certificate if none of them has issued it."""
        self._holder.authorities_changed(authorities)

    def set_rejected(self, is_rejected: bool) -> None:
        """Set whether verifiers reject the certificate in use, which is then replaced.

        For callers that have another way to request one.
        """
        if self._holder.current is not None:
            self._holder.current.is_rejected = is_rejected

    def problem(self) -> str | None:
        """Return why there is no usable certificate, or ``None``."""
        if self.is_usable:
            return None
        if self.not_after is None:
            return f"there is no {self._name} yet: {self._state()}"
        return f"the {self._name} has expired at {self.not_after:%F %T} UTC: {self._state()}"

    def warning(self) -> str | None:
        """Return why the certificate in use is not renewed or not stored, or ``None``."""
        if not self.is_usable:
            return None
        attempt = self._attempt
        now = self._clock.seconds()
        waits_long = attempt is not None and now - attempt.started_at > PENDING_WARNING_SECONDS
        if self._failure is not None or waits_long:
            return (
                f"the {self._name}, valid until {self.not_after:%F %T} UTC, is not renewed:"
                f" {self._state()}"
            )
        if self._desired.unknown is not None:
            return f"the {self._name} is not updated: {self._desired.unknown}"
        current = self._holder.current
        if current is not None and current.is_foreign:
            return f"the {self._name} {_FOREIGN}"
        return self._stored.warning()

    def _state(self) -> str:
        """Return the state of the attempt, the last error, or what is missing to begin."""
        if self._attempt is not None and self._attempt.waiting_for:
            before = f" (before that: {self._failure})" if self._failure else ""
            return f"{self._attempt.waiting_for}{before}"
        return self._failure or self._desired.unknown or "it has been requested"

    def stopService(self) -> Deferred[bool]:
        stopped = super().stopService()
        ended = None if self._attempt is None else self._abandon(self._attempt)
        return stopped if ended is None else Deferred.fromCoroutine(_wait_for_both(stopped, ended))

    def retry_now(self) -> None:
        """Abandon the attempt in progress, and retry at once: another way is available."""
        if self._attempt is not None:
            self._abandon(self._attempt)
        self._clear_failure()
        self._holder.allow_replacement()
        if self.running:
            self.check()

    def check(self) -> None:
        """Do what is due; a certificate that its issuer issues at once is in use on return."""
        if self.is_usable:
            if not self._has_been_usable:
                # The certificate had expired by a clock that has been set since.
                if self._attempt is not None:
                    self._abandon(self._attempt)
                self._clear_failure()
            self._notify_ready()
        template = self._desired.refresh()
        if template is not None:
            self._check_attempt(template)
        self._stored.retry_if_due()

    async def _check(self) -> None:
        self.check()

    def _check_attempt(self, desired: Template) -> None:
        attempt = self._attempt
        is_settled = self._desired.is_settled
        if attempt is not None:
            is_wanted = not is_settled or attempt.template.covers(desired)
            if not (is_wanted or attempt.abandoned):
                self._log.info(
                    "the {name} is requested again: its desired names have changed", name=self._name
                )
                self._abandon(attempt)
        elif self._clock.seconds() >= self._next_attempt:
            reason = self._holder.replacement_reason(desired if is_settled else None)
            if reason is not None:
                self._begin(desired, reason)
            else:
                self._clear_failure()

    # -- One attempt ---------------------------------------------------------------------------

    def _begin(self, template: Template, reason: str) -> None:
        if self._failure is None:
            self._log.info("requesting the {name}: {reason}", name=self._name, reason=reason)
        attempt = _Attempt(template, self._clock.seconds())
        self._attempt = attempt
        attempt.ended = Deferred.fromCoroutine(self._obtain(attempt))

    def _abandon(self, attempt: _Attempt) -> Deferred[None] | None:
        """Cancel an attempt, but only once, so as not to interrupt the issuer's cleanup."""
        was_abandoned, attempt.abandoned = attempt.abandoned, True
        if attempt.ended is not None and not was_abandoned:
            attempt.ended.cancel()
        return attempt.ended

    async def _obtain(self, attempt: _Attempt) -> None:
        def on_waiting(sentence: str) -> None:
            attempt.waiting_for = sentence
            self._log.info("the {name}: {sentence}", name=self._name, sentence=sentence)

        try:
            issued = await obtain(
                self._clock, self._issuer, attempt.template, self._key(), on_waiting
            )
        except (CancelledError, NotIssued) as error:
            if not attempt.abandoned:
                self._failed(error)
        except self._issuer.final_errors as error:
            if not attempt.abandoned:
                self._failed(error, is_final=True)
        except Exception as error:
            # A defect is retried, too, since nothing works without a certificate.
            self._log.failure("Defect: the {name} cannot be requested", name=self._name)
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
        self._failure = self._with_clock_hint(" ".join(str(error).split()) or type(error).__name__)
        pause = self._schedule.pause(self._failures, *self._holder.lifetime_and_remaining)
        self._next_attempt = self._clock.seconds() + pause
        # If there is an expired certificate, the clock may be wrong, so the error is not final.
        self._final_error = error if is_final and self.current is None else None
        if self._final_error is not None:
            while self._ready:
                self._ready.pop(0).errback(self._final_error)
        # To limit the log in long outages, only the 1st, 2nd, 4th, 8th ... failure is logged.
        elif type(error) is not self._failure_type or self._failures.bit_count() == 1:
            self._log.error(
                "the {name} was not obtained: {error}; {failures} attempts have failed; the next"
                " one is in {pause:.1f} seconds",
                name=self._name,
                error=self._failure,
                failures=self._failures,
                pause=pause,
            )
        self._failure_type = type(error)

    def _with_clock_hint(self, failure: str) -> str:
        """Add a hint about the clock if a stored certificate has never been valid here."""
        if self.not_after is None or self._has_been_usable:
            return failure
        return (
            f"the clock of this machine says {utc_now(self._clock):%F %T} UTC, and the {self._name}"
            f" ended at {self.not_after:%F %T} UTC. If the clock is wrong, set it: the old one is"
            f" then used again. If it is right, a new one is needed: {failure}"
        )

    def _succeeded(self, issued: IssuedCertificate) -> None:
        self.counters.issued += 1
        self._clear_failure()
        current = self._holder.install(issued)
        if current.is_foreign:
            self._log.error("the {name} {problem}", name=self._name, problem=_FOREIGN)
        self._log.info(
            "the {name} is new and valid until {end:%F %T} UTC", name=self._name, end=self.not_after
        )
        self._stored.save(issued, current.lifetime)
        for callback in self.on_change:
            try:
                callback(issued)
            except Exception:
                # The certificate is valid, and the other callbacks have to use it.
                self._log.failure("Defect: a new {name} cannot be used everywhere", name=self._name)
        self._notify_ready()

    def _clear_failure(self) -> None:
        self._failures = 0
        self._failure_type = None
        self._failure = None
        self._final_error = None
        self._next_attempt = 0.0

    def _notify_ready(self) -> None:
        """Notify the callers of :meth:`when_ready`."""
        self._has_been_usable = True
        while self._ready:
            self._ready.pop(0).callback(None)


async def _wait_for_both(stopped: Deferred[bool], ended: Deferred[None]) -> bool:
    await ended
    return await stopped
