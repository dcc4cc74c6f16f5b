"""Callers without TLS reach only the node that their connection is for."""

from __future__ import annotations

from tests.cluster.fakes import CLOUD
from tests.server.frontends.kubelet.delegated_callers import (
    API_HOSTS,
    EDGE_1,
    SERVICE,
    DelegatedCallersWorld,
)


class PlainTests(DelegatedCallersWorld):
    """Callers without TLS, who are not authenticated."""

    def test_redirected(self):
        """A redirected connection reaches its original node and port, and nothing else."""
        self.serve_kubelet(None)
        for address in EDGE_1:
            for port in (10255, 9100):
                self.redirect(address, port)
                for host in ("edge-2:10266", "127.0.0.1:10266", "edge-1:10266", *API_HOSTS):
                    caller = self.dial_insecurely()
                    self.reaches(caller, (address, port), Host=host)
                    self.answered(caller, 200, "metric 1\n")

    def test_fields_for_the_server(self):
        """Fields choose neither another node nor another port."""
        self.serve_kubelet(None)
        self.redirect(EDGE_1[0], 10255)
        for fields in (
            {"X_Tunnel_Proxy_Dest": "edge-2:10266"},
            {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-1"},
            {"X_Tunnel_Proxy_Host": "edge-2"},
        ):
            self.refuses(self.dial_insecurely(), 403, "is ignored", **fields)

    def test_pods_of_another_node(self):
        """The path chooses no other node."""
        self.redirect(EDGE_1[0], 10255)
        for first in ("run", "exec", "containerLogs"):
            target = f"/{first}/default/there/web"
            self.refuses(self.dial_insecurely(), 403, "edge-2", target=target)

    def test_unknown_addresses(self):
        """An address of no node reaches nothing."""
        self.redirect("192.0.2.77", 9100)
        self.refuses(self.dial_insecurely(), 503, "192.0.2.77:9100", Host="edge-1:9100")

    def test_programs_of_this_machine(self):
        """Programs of this machine choose the destination."""
        self.serve_kubelet(None)
        self.reaches(
            self.dial_insecurely(),
            ("10.0.0.1", 8000),
            Host="127.0.0.1:10264",
            X_Tunnel_Proxy_Dest="10.0.0.1:8000",
        )

    def test_other_machines(self):
        """Without DNS records other machines reach nothing."""
        self.targets.is_local = False
        for fields in (
            {"Host": "edge-1:9100"},
            {"Host": "10.0.0.1:10255"},
            {"Host": "localhost:10255", "target": "/run/default/here/web"},
        ):
            self.refuses(self.dial_insecurely(), 403, "--enable-dns-controller", **fields)
        self.refuses(self.dial_insecurely(), 403, "is ignored", X_Tunnel_Proxy_Dest="10.0.0.1:9100")


class PlainNamedTests(DelegatedCallersWorld):
    """Callers without TLS from other machines, which connect by DNS records."""

    iptables = False
    dns = True

    def redirected(self):
        """Send connections here through the Service, with and without conntrack, and directly."""
        node_port = ("192.0.2.77", 31910)
        for redirected_from in (None, (SERVICE, 9100), node_port):
            for is_local in (False,) if redirected_from is None else (False, True):
                self.targets.is_local = is_local
                self.targets.redirected_from = None
                if redirected_from is not None:
                    self.redirect(*redirected_from)
                yield redirected_from

    def test_names(self):
        """A node's name reaches the ports of it that are redirected here."""
        self.serve_kubelet(None)
        for _ in self.redirected():
            self.reaches(self.dial_insecurely(), (EDGE_1[0], 9100), Host="edge-1:9100")
        self.targets.redirected_from, self.targets.is_local = None, False
        self.reaches(self.dial_insecurely(), (EDGE_1[0], 10255), Host="Edge-1.:10255")
        self.refuses(
            self.dial_insecurely(),
            403,
            "the pod in the path is on the node edge-2",
            target="/run/default/there/web",
            Host="edge-1:10255",
        )

    def test_all_else(self):
        """Other ports and addresses are not reached, whatever fields or paths a request has."""
        self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
        self.put_node("tunnel.example", "10.0.0.4")
        elsewhere = ("10.0.0.2:9100", "localhost:9100", "cloud-1:9100", "edge-2")
        for redirected_from in self.redirected():
            for host in (*elsewhere, "tunnel.example:9100"):
                self.refuses(
                    self.dial_insecurely(),
                    403,
                    "http-proxy-ports",
                    Host=host,
                    target="/run/default/there/web",
                )
            for fields in (
                {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-2"},
                {"X_Tunnel_Proxy_Host": "edge-2"},
                {"X_Tunnel_Proxy_Dest": "edge-2:9100"},
            ):
                self.refuses(
                    self.dial_insecurely(), 403, "is ignored", Host="edge-1:9100", **fields
                )
            if redirected_from is None:
                for port in (10250, 10264, 10266, 10267, 22):
                    host = f"edge-1:{port}"
                    self.refuses(self.dial_insecurely(), 403, "http-proxy-ports", Host=host)
