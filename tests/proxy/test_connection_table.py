"""Tests of the usage of the kernel's conntrack table."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.proxy.metrics import ConnectionTable, connection_table


class ConnectionTableTests(SynchronousTestCase):
    """Reading /proc."""

    def test_both_numbers(self):
        """Entries and limit are those of the kernel's files."""
        settings = Path(self.mktemp()) / "sys/net/netfilter"
        settings.mkdir(parents=True)
        (settings / "nf_conntrack_count").write_text("17\n")
        (settings / "nf_conntrack_max").write_text("262144\n")
        self.assertEqual(ConnectionTable(17, 262144), connection_table(settings.parents[2]))

    def test_a_kernel_without_one(self):
        """Nothing is shown while the module is not loaded."""
        self.assertIsNone(connection_table(Path(self.mktemp())))
