"""A caller that acts for itself reaches only the node that its connection is for."""

from __future__ import annotations

from tests.cluster.fakes import CLOUD
from tests.server.frontends.kubelet.delegated_callers import (
    API_HOSTS,
    EDGE_1,
    SERVICE,
    DelegatedCallersWorld,
)


class OwnTests(DelegatedCallersWorld):
    """Callers that act for themselves, or are missing from --allowed-callers."""

    def test_authorized_for_what_is_named(self):
        """At the server's own address their fields choose, and their permission is reviewed."""
        for name in (None, "x-tunnel-server-internal-svc", "cloud-1"):
            self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
            self.redirect(SERVICE, 10263)
            caller = self.jane(name)
            for fields in ({"Host": "edge-2:10250"}, {"X_Tunnel_Proxy_Dest": "edge-2:10250"}):
                self.refuses(
                    caller, 403, "'jane' may not get nodes/metrics of node edge-2", **fields
                )
            self.assertNotIn(b"--allowed-callers", caller.received)
            self.api.rules.add(("jane", "get", "metrics", "edge-1"))
            self.reaches(self.jane(name), ("edge-1", 10250), Host="edge-1:10250")

    def test_connections_for_nodes(self):
        """A connection for a node reaches that or nothing, whatever the request contains."""
        for verb in ("get", "create"):
            for what in ("proxy", "metrics"):
                for each in ("edge-1", "edge-2"):
                    self.api.rules.add(("system:apiserver", verb, what, each))
        self.api.tokens["secret"] = "system:apiserver"
        for address, name in ((EDGE_1[0], None), (EDGE_1[1], "edge-2"), (None, "edge-1")):
            self.targets.redirected_from = None
            if address is not None:
                self.redirect(address)
            for caller, fields in (
                (self.jane(name, "system:apiserver"), {}),
                (self.connect(None, name), {"Authorization": "Bearer secret"}),
            ):
                for host in ("edge-2:10250", "10.0.0.2:10250", "[2001:db8::2]:10266", "EDGE-2.:1"):
                    self.refuses(
                        caller,
                        403,
                        "Host is the node edge-2, and the connection was for edge-1",
                        Host=host,
                        **fields,
                    )
                for field in ("X_Tunnel_Proxy_Dest", "X_Tunnel_Proxy_Host"):
                    self.refuses(
                        caller,
                        403,
                        "and on connections to a node",
                        **{field: "edge-2:10250"},
                        **fields,
                    )
                for host in ("edge-1:10250", API_HOSTS[0]):
                    self.refuses(
                        caller,
                        403,
                        "the pod in the path is on the node edge-2",
                        target="/run/default/there/web",
                        method="POST",
                        Host=host,
                        **fields,
                    )

    def test_ordinary(self):
        """A kube-apiserver that is not in the list reaches the node of its packets, if it has
        permission itself, and the log names the flag.
        """
        self.redirect(EDGE_1[0])
        for number, host in enumerate((*API_HOSTS, "127.0.0.1:10266", "edge-1:10266")):
            name = f"apiserver-{number}"
            self.refuses(
                self.jane(name=name),
                403,
                f"'{name}' may not get nodes/metrics of node edge-1",
                "put its name into --allowed-callers",
                Host=host,
            )
            self.api.rules.add((f"{name}-of-k3s", "get", "metrics", "edge-1"))
            self.pass_time(60, step=60)
            caller = self.jane(name=f"{name}-of-k3s")
            self.reaches(caller, (EDGE_1[0], 10250), Host=host)
            self.answered(caller, 200, "metric 1\n")
        warned = [line for line in self.lines if "is not in --allowed-callers" in line]
        self.assertIn("'apiserver-0' sends requests", warned[0])
        # One at once, and one a minute.
        self.assertEqual(len(warned), 1 + len(API_HOSTS) + 2)

    def test_named(self):
        """If the name in TLS determines the node, ``Host`` of that node determines the port."""
        self.api.rules.add(("prometheus", "get", "proxy", "edge-1"))
        self.api.rules.add(("prometheus", "get", "metrics", "edge-1"))
        for host, dialed in (
            ("edge-1:9443", ("edge-1", 9443)),
            (API_HOSTS[0], (EDGE_1[0], 10250)),
        ):
            self.reaches(self.jane("edge-1", "prometheus"), dialed, Host=host)


class EarlyOwnTests(DelegatedCallersWorld):
    """Callers that act for themselves at a server whose caches have not synced."""

    synced = False

    def test_redirected(self):
        """Connections redirected by an earlier server's rules are rejected before the sync."""
        self.redirect(EDGE_1[0])
        self.refuses(self.jane(), 503, "(yet)", Host="edge-2:10250")
