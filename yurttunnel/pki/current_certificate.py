"""The certificate in use: its expiry, and the reasons to replace it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from twisted.internet.interfaces import IReactorTime

from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import BACKDATE
from yurttunnel.pki.issuer import IssuedCertificate, Template
from yurttunnel.pki.renewal_schedule import Schedule

MIN_FAULT_PAUSE = 60.0
MAX_FAULT_PAUSE = 86400.0
"""Seconds before another request is made for a certificate that none of the authorities has issued,
that peers reject, or whose validity begins in the future. The pause doubles each time: the cause is
a rotation in progress, the cluster's configuration, or a wrong clock, and the last two may persist.
"""


@dataclass(slots=True)
class CurrentCertificate:
    """A certificate in use, with the time of its renewal.

    ``is_foreign`` is whether none of the authorities that verify it has issued it. ``issued_at`` is
    its time of issue. Faults that it had from the beginning are reasons to replace it from
    ``replaceable_from`` on, in seconds of the monotonic clock. ``is_rejected`` is whether peers
    reject it although it seems valid here, and a new one can be requested without it.
    """

    issued: IssuedCertificate
    issued_at: datetime.datetime
    renewal_at: datetime.datetime
    is_foreign: bool
    replaceable_from: float
    is_rejected: bool = False

    @property
    def not_after(self) -> datetime.datetime:
        """When it expires, in UTC."""
        return self.issued.certificate.not_valid_after_utc

    @property
    def lifetime(self) -> float:
        """Its whole lifetime, in seconds."""
        return max(1.0, (self.not_after - self.issued_at).total_seconds())

    def is_usable(self, now: datetime.datetime) -> bool:
        """Return whether it has not expired."""
        return now < self.not_after

    def is_not_yet_valid(self, now: datetime.datetime) -> bool:
        """Return whether it is not valid yet."""
        return now < self.issued.certificate.not_valid_before_utc

    def fault(self, now: datetime.datetime, seconds: float, desired: Template | None) -> str | None:
        """Complete "the one in use ..." if it has to be replaced; ``desired`` is optional."""
        if not self.is_usable(now):
            return "has expired"
        if seconds >= self.replaceable_from:
            if self.is_not_yet_valid(now):
                # Issued by a clock that was ahead: peers do not accept it yet.
                return "begins in the future"
            if self.is_rejected:
                return "is not accepted"
            if self.is_foreign:
                return "is not from an authority of the cluster"
        problem = None if desired is None else desired.problem(self.issued.certificate)
        if problem is None and now >= self.renewal_at:
            return "is near its end"
        return problem


class CertificateHolder:
    """The certificate in use, ``current``; ``None`` before the first one.

    ``authorities`` are those that certificates must be issued by, ``None`` for any.
    """

    def __init__(
        self,
        clock: IReactorTime,
        schedule: Schedule,
        authorities: Sequence[x509.Certificate] | None,
        stored: IssuedCertificate | None,
    ) -> None:
        self._clock = clock
        self._schedule = schedule
        self._authorities = authorities
        self._fault_pause = MIN_FAULT_PAUSE
        self.current = None if stored is None else self._loaded(stored)

    @property
    def is_usable(self) -> bool:
        """Whether there is a certificate that has not expired."""
        return self.current is not None and self.current.is_usable(utc_now(self._clock))

    @property
    def lifetime_and_remaining(self) -> tuple[float, float]:
        """Its lifetime and the remaining part of that, in seconds; 0 without a certificate."""
        if self.current is None:
            return 0.0, 0.0
        remaining = self.current.not_after - utc_now(self._clock)
        return self.current.lifetime, remaining.total_seconds()

    def replacement_reason(self, settled: Template | None) -> str | None:
        """Return why a new certificate is needed; ``None`` if the one in use suffices."""
        if self.current is None:
            return "there is none"
        fault = self.current.fault(utc_now(self._clock), self._clock.seconds(), settled)
        return None if fault is None else f"the one in use {fault}"

    def authorities_changed(self, authorities: Sequence[x509.Certificate]) -> None:
        """Set the authorities, and replace the certificate if none of them has issued it."""
        self._authorities = authorities
        self._fault_pause = MIN_FAULT_PAUSE
        if self.current is not None:
            self.current.is_foreign = self._is_foreign(self.current.issued)
            self.current.replaceable_from = 0.0

    def allow_replacement(self) -> None:
        """Make the faults that the certificate had from the beginning reasons to replace it now."""
        if self.current is not None:
            self.current.replaceable_from = 0.0

    def install(self, issued: IssuedCertificate) -> CurrentCertificate:
        """Use a certificate that was issued just now.

        Its lifetime is counted from now: certificates are backdated, and most of a short one could
        be over already. If it is foreign or begins later, the next one will probably be, too,
        unless the cluster changes its signer or the clock is set; if the previous one was rejected,
        this one may be rejected as well. The pause before the next request is then doubled.
        """
        now = utc_now(self._clock)
        replaceable_from = self._clock.seconds() + self._fault_pause
        renewal_at = self._schedule.renewal_at(now, issued.certificate.not_valid_after_utc)
        current = CurrentCertificate(
            issued, now, renewal_at, self._is_foreign(issued), replaceable_from
        )
        was_rejected = self.current is not None and self.current.is_rejected
        if current.is_foreign or was_rejected or current.is_not_yet_valid(now):
            self._fault_pause = min(2 * self._fault_pause, MAX_FAULT_PAUSE)
        else:
            self._fault_pause = MIN_FAULT_PAUSE
        self.current = current
        return current

    def _loaded(self, issued: IssuedCertificate) -> CurrentCertificate:
        """Use a certificate of an earlier run, whose authority may no longer be trusted."""
        certificate = issued.certificate
        issued_at = certificate.not_valid_before_utc
        end = certificate.not_valid_after_utc
        renewal_at = self._schedule.renewal_at(min(issued_at + BACKDATE, end), end)
        return CurrentCertificate(issued, issued_at, renewal_at, self._is_foreign(issued), 0.0)

    def _is_foreign(self, issued: IssuedCertificate) -> bool:
        return self._authorities is not None and not issued.is_from(self._authorities)
