"""kube-apiserver, which has dialed a node's name, reaches no other node."""

from __future__ import annotations

from tests.server.frontends.kubelet.delegated_callers import (
    API_HOSTS,
    EDGE_1,
    EDGE_2,
    OWN_NAMES,
    SERVICE,
    UPGRADE,
    DelegatedCallersWorld,
    OtherNode,
)
from yurttunnel.kube.resources import NODES


class NamedTests(DelegatedCallersWorld):
    """kube-apiserver, which has dialed a node's name that resolves to the Service."""

    iptables = False
    dns = True

    def test_rules_of_others(self):
        """Connections redirected by rules that are not ours reach nothing, for any caller."""
        self.redirect(EDGE_2[0])
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        for caller in (self.apiserver("edge-1"), self.jane(), self.jane("edge-1")):
            self.refuses(caller, 503, "not by rules that this server knows", Host="edge-1:10250")

    def test_upgrades_that_name_no_node(self):
        """The pod determines the node only if TLS has no name at all."""
        for name in ("edge-9", *OWN_NAMES, "api.example", "10.0.0.3"):
            self.refuses(
                self.apiserver(name),
                403,
                "no node can be determined",
                target="/exec/default/here/web",
                method="POST",
                **UPGRADE,
            )

    def test_node_that_claims_a_name_of_the_server(self):
        """A node that claims a name of the server gets no connections to that, and blocks none."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.put_node("edge-2", *EDGE_2, *OWN_NAMES)
        for name in OWN_NAMES:
            self.reaches(self.jane(name), ("edge-1", 10250), Host="edge-1:10250")
            self.refuses(
                self.apiserver(name), 403, "no node can be determined", Host="edge-2:10250"
            )

    def test_node_that_is_called_as_the_server(self):
        """A node with the server's name, by the API or its certificate, gets none either."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        called = OtherNode(OWN_NAMES[1])
        self.registry.add(called)
        for _ in range(2):
            self.reaches(self.jane(OWN_NAMES[1]), ("edge-1", 10250), Host="edge-1:10250")
            self.refuses(
                self.apiserver(OWN_NAMES[1]), 403, "no node can be determined", Host="edge-1:10250"
            )
            self.put_node(OWN_NAMES[1], "10.0.0.3")
        self.assertEqual([], called.dials)

    def test_ordinary(self):
        """The name in TLS determines the node, although ``Host`` is the API's own."""
        for host in (*API_HOSTS, "edge-2:10250", "127.0.0.1:10266"):
            caller = self.apiserver("edge-1")
            self.reaches(caller, (EDGE_1[0], 10250), Host=host)
            self.answered(caller, 200)

    def test_port_of_the_service(self):
        """If kube-proxy is on the same machine, the port is known, too."""
        self.redirect(SERVICE, 9443)
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 9443), Host="edge-1:10250")

    def test_node_port(self):
        """A node port means the port of the Service, which is the node's."""
        self.put_node("edge-1", *EDGE_1, port=10350)
        self.redirect("192.0.2.77", 31250)
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), Host="edge-1:31250")

    def test_pods_of_another_node(self):
        """The pod must be on the node that TLS names."""
        self.refuses(
            self.apiserver("edge-1"), 403, "is on the node edge-2", target="/run/default/there/web"
        )

    def test_upgrades_without_a_name(self):
        """``kubectl exec`` works if kube-apiserver does not verify kubelets: by the pod."""
        for first in ("exec", "attach", "portForward", "%65xec"):
            for host in API_HOSTS:
                target = f"/{first}/default/here/web?command=sh"
                caller = self.apiserver()
                self.reaches(caller, (EDGE_1[0], 10250), target=target, Host=host, **UPGRADE)

    def test_no_name_at_all(self):
        """All other requests without a name are rejected, with the settings to change."""
        for target, fields in (
            ("/metrics", {}),
            ("/metrics", UPGRADE),
            ("/containerLogs/default/here/web", UPGRADE),
            ("/run/default/here/web", UPGRADE),
            ("/exec/default/here/web", {}),
            ("//exec/default/here/web", UPGRADE),
        ):
            for name in (None, "x-tunnel-server-internal-svc.kube-system.svc", "10.0.0.1"):
                self.refuses(
                    self.apiserver(name),
                    403,
                    "--kubelet-certificate-authority",
                    "--passthrough-port",
                    "--enable-iptables",
                    target=target,
                    Host="edge-1:10250",
                    **fields,
                )

    def test_node_that_the_api_does_not_have(self):
        """An agent that has proven the name suffices."""
        self.informers.delete(NODES, "edge-1")
        self.reaches(self.apiserver("edge-1"), ("edge-1", 10250), Host="edge-2:10250")

    def test_dials_are_seen(self):
        """A dial to the other node is detected by the assertions of these tests."""
        self.send_request(self.apiserver("edge-2"))
        self.assertEqual(self.other.dials, [(EDGE_2[0], 10250)])

    def test_unknown_pod(self):
        """An upgrade for a pod that is not in the cache yet is rejected with 503, for a retry."""
        self.refuses(self.apiserver(), 503, "(yet)", target="/exec/default/new/web", **UPGRADE)


class NamedUpgradesTests(DelegatedCallersWorld):
    """The same with ``--unnamed-upgrades=refuse``."""

    refuse_unnamed_upgrades = True

    upgrades = (
        UPGRADE,
        {"Connection": "Upgrade", "Upgrade": "websocket"},
        # An upgrade to kube-apiserver, but not to this server.
        {"Connection": "Upgrade"},
        {"Connection": "keep-alive, not-an-UPGRADE"},
        {"Connection": "Upgrade", "Upgrade": "h2c"},
    )

    def test_kube_apiserver(self):
        """Neither the pod nor anything else replaces a name."""
        self.redirect(SERVICE)
        for name in (None, "10.0.0.1", "elsewhere"):
            for first in ("exec", "attach", "portForward", "run"):
                for fields in self.upgrades:
                    self.refuses(
                        self.apiserver(name),
                        403,
                        "--unnamed-upgrades=refuse",
                        "--kubelet-certificate-authority",
                        "--enable-iptables",
                        target=f"/{first}/default/here/web",
                        Host="edge-1:10250",
                        **fields,
                    )

    def test_unlisted_kube_apiserver(self):
        """A kube-apiserver not in --allowed-callers chooses no node by its clients' fields."""
        for verb in ("get", "proxy", "metrics", "exec"):
            self.api.rules.add(("system:apiserver", "get", verb, "edge-1"))
        self.api.tokens["secret"] = "system:apiserver"
        for redirected_from in (None, SERVICE):
            self.targets.redirected_from = None
            if redirected_from is not None:
                self.redirect(redirected_from)
            for caller, proof in (
                (self.jane(name="system:apiserver"), {}),
                (self.connect(None, None), {"Authorization": "Bearer secret"}),
            ):
                for chosen in ({"Host": "edge-1:10250"}, {"X_Tunnel_Proxy_Dest": "edge-1:22"}):
                    for fields in self.upgrades:
                        self.refuses(
                            caller,
                            403,
                            "--unnamed-upgrades=refuse",
                            **chosen,
                            **fields,
                            **proof,
                        )

    def test_named(self):
        """Names still count: a node's, and for callers that act for themselves the server's own."""
        for target in ("/exec/default/here/web", "/metrics"):
            self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), target=target, **UPGRADE)
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.reaches(
            self.jane("x-tunnel-server-internal-svc"),
            ("edge-1", 10250),
            Host="edge-1:10250",
            **UPGRADE,
        )

    def test_redirected(self):
        """For redirected connections the address determines the node."""
        self.redirect(EDGE_1[0])
        self.reaches(
            self.apiserver(), (EDGE_1[0], 10250), target="/exec/default/here/web", **UPGRADE
        )
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.reaches(self.jane(), (EDGE_1[0], 10250), **UPGRADE)

    def test_ordinary(self):
        """Other requests are handled as without the flag."""
        self.refuses(self.apiserver(), 403, "no node can be determined", Host="edge-1:10250")
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        self.reaches(self.jane(), ("edge-1", 10250), Host="edge-1:10250")
