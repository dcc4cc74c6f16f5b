"""A certificate that is in use, and when it is time for another."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509

from yurttunnel.pki.certificate_template import CertificateTemplate, IssuedCertificate

RENEWED_FROM = 0.7
RENEWED_UNTIL = 0.9
"""The share of its life after which a certificate is renewed lies between these two (client-go,
``nextRotationDeadline``), at random so that nodes do not all do so at once."""


@dataclass(slots=True)
class HeldCertificate:
    """A certificate, with the time from which it is to be renewed.

    ``is_foreign`` says that none of the cluster's authorities has issued it, of which whoever
    verifies it has the same list; then it is to be replaced from ``foreign_until`` on.
    """

    issued: IssuedCertificate
    renewal_at: datetime.datetime
    is_foreign: bool
    foreign_until: datetime.datetime

    @classmethod
    def loaded(
        cls, issued: IssuedCertificate, authorities: Sequence[x509.Certificate]
    ) -> HeldCertificate:
        """Take up one of an earlier run, perhaps of a cluster that is no more."""
        begin = issued.certificate.not_valid_before_utc
        return cls(issued, _renewal_time(issued, begin), not issued.is_from(authorities), begin)

    @classmethod
    def obtained(
        cls,
        issued: IssuedCertificate,
        authorities: Sequence[x509.Certificate],
        now: datetime.datetime,
        patience: datetime.timedelta,
    ) -> HeldCertificate:
        """Take up one that was issued just now.

        Its life begins now: certificates are dated back, and of a short one the most could be
        over already. If it is foreign, the next one will be so, too, unless the cluster changes
        its signer within ``patience``.
        """
        is_foreign = not issued.is_from(authorities)
        return cls(issued, _renewal_time(issued, now), is_foreign, now + patience)

    def compare(self, authorities: Sequence[x509.Certificate]) -> None:
        """Look whether it is from one of the new ``authorities``, and do not wait if not."""
        self.is_foreign = not self.issued.is_from(authorities)
        self.foreign_until = self.issued.certificate.not_valid_before_utc

    @property
    def not_after(self) -> datetime.datetime:
        """When it ends, in UTC."""
        return self.issued.certificate.not_valid_after_utc

    def is_usable(self, now: datetime.datetime) -> bool:
        """Return whether it has not expired."""
        return now < self.not_after

    def fault(self, now: datetime.datetime, desired: CertificateTemplate | None) -> str | None:
        """Complete "the one in use ..." when another is needed; ``desired`` may be left out."""
        if not self.is_usable(now):
            return "has expired"
        if self.is_foreign and now >= self.foreign_until:
            return "is not from an authority of the cluster"
        problem = None if desired is None else desired.problem(self.issued.certificate)
        if problem is None and now >= self.renewal_at:
            return "is near its end"
        return problem


def _renewal_time(issued: IssuedCertificate, begin: datetime.datetime) -> datetime.datetime:
    end = issued.certificate.not_valid_after_utc
    return begin + (end - begin) * random.uniform(RENEWED_FROM, RENEWED_UNTIL)
