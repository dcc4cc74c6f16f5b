"""What is written in messages is what is read from them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.snapshots import snapshot
from tests.pki.support import Issuer
from yurttunnel.metrics import Durations
from yurttunnel.pki.identity import identity_from_certificate
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.stats import Growth, SnapshotChanges, add_growth
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code


def through_json(fields):
    """Return what the other process gets."""
    return json.loads(json.dumps(fields))


class RoundTripTests(SynchronousTestCase):
    """Each kind of thing, there and back."""

    def test_credentials(self):
        """With a chain and authorities, and without."""
        credentials = Issuer.make(self).server()
        written = through_json(messages.credentials_to_fields(credentials))
        read = messages.credentials_from_fields(written)
        self.assertEqual(read.certificate, credentials.certificate)
        self.assertEqual(read.chain, credentials.chain)
        self.assertEqual(read.authorities, credentials.authorities)
        self.assertEqual(read.key.public_key(), credentials.key.public_key())

    def test_identity(self):
        """All that a certificate says of a node."""
        identity = identity_from_certificate(Issuer.make(self).node().certificate)
        written = through_json(messages.identity_to_fields(identity))
        self.assertEqual(messages.identity_from_fields(written), identity)

    def test_snapshot(self):
        """A session's figures, those that may be missing included."""
        for each in (snapshot(), snapshot(round_trip=None, certificate_not_after=None)):
            written = through_json(messages.snapshot_to_fields(each))
            self.assertEqual(messages.snapshot_from_fields(written), each)


class FiguresTests(SynchronousTestCase):
    """Figures of two processes become one set."""

    def setUp(self):
        """Count a little."""
        self.counters, self.refusals = TunnelCounters(), Counter()
        self.growth = Growth(self.counters, self.refusals)
        self.all, self.all_refusals = TunnelCounters(bytes_sent=5), Counter(tls=1)

    def tell(self):
        """Do what is done once a second."""
        add_growth(self.all, self.all_refusals, through_json(self.growth.take()))

    def test_each_growth_counts_once(self):
        """What has been told is not added again."""
        self.counters.bytes_sent += 10
        self.counters.dials[Code.DONE] += 2
        self.counters.dial_durations.observe(0.01)
        self.refusals["tls"] += 1
        for _ in range(3):
            self.tell()
        self.counters.bytes_sent += 1
        self.counters.session_ends[Code.REVOKED] += 1
        self.tell()
        self.assertEqual(self.all.bytes_sent, 16)
        self.assertEqual(self.all.dials, Counter({Code.DONE: 2}))
        self.assertEqual(self.all.session_ends, Counter({Code.REVOKED: 1}))
        self.assertEqual(self.all.dial_durations.buckets, self.counters.dial_durations.buckets)
        self.assertAlmostEqual(self.all.dial_durations.total_seconds, 0.01)
        self.assertEqual(self.all_refusals, Counter(tls=2))

    def test_everything_is_told(self):
        """No figure of a worker is forgotten."""
        for each in fields(TunnelCounters):
            value = getattr(self.counters, each.name)
            if isinstance(value, Durations):
                value.observe(0.5)
            elif isinstance(value, Counter):
                value["caller.all" if each.name == "refused" else Code.DONE] += 3
            else:
                setattr(self.counters, each.name, value + 3)
        self.all = TunnelCounters()
        self.tell()
        self.assertEqual(self.all.amounts(), self.counters.amounts())
        for each in fields(TunnelCounters):
            value = getattr(self.all, each.name)
            self.assertTrue(sum(value.buckets) if isinstance(value, Durations) else value, each)

    def test_nothing_is_told_of_what_stays(self):
        """An idle worker says little."""
        self.counters.resumptions += 1
        self.tell()
        self.assertEqual(self.growth.take(), {})

    def test_changes_of_sessions(self):
        """Sessions are told when they are new or changed, and when they have ended."""
        changes = SnapshotChanges()
        one, other = snapshot(session_id="01"), snapshot(session_id="02")
        self.assertEqual(changes.take([one, other]), ([one, other], []))
        self.assertEqual(changes.take([one, other]), ([], []))
        busier = snapshot(session_id="01", streams=99)
        self.assertEqual(changes.take([busier]), ([busier], ["02"]))
