"""Tests of nftables expressions, as the program ``nft`` shows what the kernel has parsed."""

from __future__ import annotations

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase, run_at_once
from yurttunnel.steering.netlink import expressions as nft
from yurttunnel.steering.netlink.owned_table import INPUT, BaseChain, OwnedTable


class ExpressionTests(KernelTestCase):
    """A chain with one rule of each kind."""

    def test_read_back(self):
        """What is matched, and what is set, in order."""
        expected = {
            "ct state related": nft.ct_has(nft.CT_STATE, 1 << 2),
            "ct status seen-reply": nft.ct_has(nft.CT_STATUS, 1 << 1),
            "ct mark & 0x00000010 != 0x00000000": nft.ct_has(nft.CT_MARK, 16),
            "ct mark set ct mark | 0x00001000": nft.add_to_ct(nft.CT_MARK, 0x1000),
        }
        chain = BaseChain("read-back", "filter", INPUT, 0, tuple(expected.values()))
        table = OwnedTable(run_at_once, "test-", [chain], "cannot", self.fail)
        table.startService()
        self.addCleanup(table.stopService)
        _, shown = run("nft", "list", "ruleset").split("policy accept;")
        lines = [line.strip() for line in shown.splitlines()]
        self.assertEqual([*expected], [line for line in lines if line not in ("", "}")])
