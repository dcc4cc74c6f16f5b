"""The metrics of certificates in a cluster."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.scrapes import families
from yurttunnel.pki.metrics import (
    ClusterTrustStats,
    CommonCertificateCounters,
    RequestCounters,
    cluster_trust_metrics,
)

SERVER, AGENT = "yurttunnel_server_", "yurttunnel_agent_"


class ClusterTrustTests(SynchronousTestCase):
    """The families of metrics."""

    def scrape(self, prefix, stats):
        """Return a function that returns a sample's value."""
        values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families(cluster_trust_metrics(prefix), stats)
            for sample in family.samples
        }
        return lambda name, **labels: values.get((prefix + name, frozenset(labels.items())))

    def test_requests(self):
        """Requests are counted by certificate and result, from the first scrape on."""
        requests = {"server": RequestCounters(1, 2, 3), "kubelet-client": RequestCounters()}
        value = self.scrape(SERVER, ClusterTrustStats(requests))
        for certificate, counts in (("server", (1, 2, 3)), ("kubelet-client", (0, 0, 0))):
            for result, count in zip(("issued", "denied", "failed"), counts, strict=True):
                found = value("certificate_requests_total", certificate=certificate, result=result)
                self.assertEqual(found, count)

    def test_broken_bundle(self):
        """The gauge of an unusable bundle is 1."""
        for broken in (False, True):
            value = self.scrape(AGENT, ClusterTrustStats({}, broken))
            self.assertEqual(value("authorities_broken"), int(broken))

    def test_common_certificates(self):
        """A server counts uses of yurttunnel 1.2 certificates; an agent lacks the family."""
        counters = CommonCertificateCounters(accepted=4, refused=5)
        value = self.scrape(SERVER, ClusterTrustStats({}, False, counters))
        self.assertEqual(value("common_agent_certificates_total", result="accepted"), 4)
        self.assertEqual(value("common_agent_certificates_total", result="refused"), 5)
        value = self.scrape(AGENT, ClusterTrustStats({}))
        self.assertIsNone(value("common_agent_certificates_total", result="accepted"))
