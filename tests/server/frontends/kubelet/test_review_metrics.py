"""The metrics of the authorization of callers."""

from __future__ import annotations

from collections import Counter

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.scrapes import families
from yurttunnel.server.frontends.kubelet.reviews import METRICS, AuthorizationCounters
from yurttunnel.server.frontends.kubelet.single_flight_cache import LookupCounters


class FamilyTests(SynchronousTestCase):
    """The families."""

    def test_samples(self) -> None:
        """Each count has its labels, and unused reviews are zero."""
        counters = AuthorizationCounters(
            decisions=Counter({("allowed", "token"): 5, ("denied", "certificate"): 1}),
            lookups={"token": LookupCounters(2, 3, 4), "access": LookupCounters()},
            failures=Counter(access=6),
        )
        found = {
            (
                sample.name.removeprefix("yurttunnel_server_caller_"),
                *sample.labels.values(),
            ): sample.value
            for family in families(METRICS, counters)
            for sample in family.samples
        }
        self.assertEqual(
            {
                ("decisions_total", "allowed", "token"): 5,
                ("decisions_total", "denied", "certificate"): 1,
                ("lookups_total", "token", "kept"): 2,
                ("lookups_total", "token", "shared"): 3,
                ("lookups_total", "token", "asked"): 4,
                ("lookups_total", "access", "kept"): 0,
                ("lookups_total", "access", "shared"): 0,
                ("lookups_total", "access", "asked"): 0,
                ("review_failures_total", "token"): 0,
                ("review_failures_total", "access"): 6,
            },
            found,
        )
