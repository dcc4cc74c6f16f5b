"""The metrics of siblings."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.scrapes import families
from yurttunnel.server.siblings.service import METRICS, SiblingStats
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code


class SiblingFamiliesTests(SynchronousTestCase):
    """The families by their names and samples."""

    def setUp(self):
        """Set the counts."""
        outgoing, incoming = TunnelCounters(), TunnelCounters()
        outgoing.dials.update({Code.DONE: 7, Code.REFUSED: 2})
        incoming.dials[Code.TIMEOUT] = 1
        outgoing.bytes_sent, outgoing.bytes_received = 10, 20
        incoming.bytes_sent, incoming.bytes_received = 300, 400
        stats = SiblingStats(
            known=3,
            connected=2,
            remote_nodes=5,
            outgoing=outgoing,
            incoming=incoming,
            open_outgoing=11,
            open_incoming=12,
            failed_attempts=13,
        )
        self.families = families(METRICS, stats)
        self.samples = {
            (sample.name.removeprefix("yurttunnel_server_"), *sample.labels.values()): sample.value
            for family in self.families
            for sample in family.samples
        }

    def test_samples(self):
        """Each value is in its family."""
        for labels, value in {
            ("siblings", "known"): 3,
            ("siblings", "connected"): 2,
            ("remote_nodes",): 5,
            ("sibling_streams", "out"): 11,
            ("sibling_streams", "in"): 12,
            ("sibling_stream_openings_total", "out", "DONE"): 7,
            ("sibling_stream_openings_total", "out", "REFUSED"): 2,
            ("sibling_stream_openings_total", "out", "SESSION_LOST"): 0,
            ("sibling_stream_openings_total", "in", "TIMEOUT"): 1,
            ("sibling_stream_openings_total", "in", "DONE"): 0,
            ("sibling_bytes_total", "out"): 310,
            ("sibling_bytes_total", "in"): 420,
            ("sibling_connection_failures_total",): 13,
        }.items():
            self.assertEqual(value, self.samples[labels], labels)

    def test_names(self):
        """Every name has the server's prefix, and every family an explanation."""
        for family in self.families:
            self.assertTrue(family.name.startswith("yurttunnel_server_"))
            self.assertGreater(len(family.documentation), 60)
