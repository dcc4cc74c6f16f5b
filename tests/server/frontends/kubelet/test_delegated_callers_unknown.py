"""Connections redirected by others' rules, or before the cluster is known, reach nothing."""

from __future__ import annotations

from tests.server.frontends.kubelet.delegated_callers import EDGE_1, DelegatedCallersWorld


class OthersRulesTests(DelegatedCallersWorld):
    """A server without firewall rules of its own."""

    iptables = False

    def test_redirected_by_others(self):
        """Rules that are not ours, such as those left by another server, choose nothing."""
        self.redirect(EDGE_1[0], 10255)
        self.refuses(
            self.dial_insecurely(), 503, "10.0.0.1:10255", "/steering", Host="edge-2:10266"
        )


class EarlyTests(DelegatedCallersWorld):
    """A server whose caches have not synced."""

    synced = False

    def test_redirected(self):
        """Connections redirected by an earlier server's rules are rejected before the sync."""
        self.redirect(EDGE_1[0], 10255)
        self.refuses(self.dial_insecurely(), 503, "(yet)", Host="edge-2:10266")
        for caller in (self.apiserver("edge-1"), self.jane()):
            self.refuses(caller, 503, "(yet)", Host="edge-2:10250")
