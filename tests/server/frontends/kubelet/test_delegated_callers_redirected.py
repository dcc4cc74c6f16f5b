"""kube-apiserver, with connections redirected here by firewall rules, reaches no other node."""

from __future__ import annotations

import json
from ipaddress import ip_address

from tests.cluster.fakes import CLOUD, EDGE, node
from tests.server.frontends.kubelet.delegated_callers import (
    API_HOSTS,
    EDGE_1,
    EDGE_2,
    EXTERNAL,
    SERVICE,
    UPGRADE,
    DelegatedCallersWorld,
)
from yurttunnel.kube.resources import NODES
from yurttunnel.steering.original_destination import SocketAddress


class RedirectedTests(DelegatedCallersWorld):
    """kube-apiserver, with connections redirected here by our firewall rules."""

    def test_ordinary(self):
        """``kubectl get --raw /api/v1/nodes/edge-1/proxy/metrics`` reaches the node, in both
        families, although ``Host`` is the API's own name.
        """
        for address in EDGE_1:
            self.redirect(address)
            for host in API_HOSTS:
                caller = self.apiserver()
                self.reaches(caller, (address, 10250), Host=host, X_Forwarded_For="192.0.2.50")
                self.answered(caller, 200, "metric 1\n")

    def test_host_of_another_node(self):
        """``Host: edge-2:10250`` through edge-1 reaches edge-1."""
        for address in EDGE_1:
            self.redirect(address)
            for host in ("edge-2:10250", "10.0.0.2:10250", "[2001:db8::2]:10266", "EDGE-2.:1"):
                self.reaches(self.apiserver(), (address, 10250), Host=host)

    def test_fields_for_the_server(self):
        """``X-Tunnel-Proxy-Dest`` and ``X-Tunnel-Proxy-Host`` are always rejected."""
        self.redirect(EDGE_1[0])
        for fields in (
            {"X_Tunnel_Proxy_Dest": "edge-2:10250"},
            {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266"},
            {"X_Tunnel_Proxy_Host": "edge-2"},
            {"x_tunnel_proxy_host": "edge-1"},
            {"X_Tunnel_Proxy_Host": ""},
        ):
            self.refuses(
                self.apiserver(), 403, "is ignored from callers that act for others", **fields
            )

    def test_pods_of_another_node(self):
        """Paths of a pod on edge-2 through edge-1 are rejected, even if they are encoded."""
        self.redirect(EDGE_1[0])
        for first in (
            "run",
            "exec",
            "attach",
            "portForward",
            "containerLogs",
            "checkpoint",
            "%65xec",
        ):
            for fields in ({}, UPGRADE):
                self.refuses(
                    self.apiserver("edge-2"),
                    403,
                    "the pod in the path is on the node edge-2, and the connection was for edge-1",
                    target=f"/{first}/default/there/web",
                    method="POST",
                    Host="edge-2:10250",
                    **fields,
                )
        self.assertTrue(any("is on the node edge-2" in line for line in self.lines), self.lines)

    def test_pods(self):
        """A pod of the node is reached, and so is one that is not in the cache yet."""
        self.redirect(EDGE_1[0])
        for name in ("here", "new"):
            target = f"/containerLogs/default/{name}/web"
            self.reaches(self.apiserver(), (EDGE_1[0], 10250), target=target, Host=API_HOSTS[0])

    def test_other_ports(self):
        """The original port counts, too, and paths on ports of others are not about pods."""
        self.redirect(EDGE_1[0], 9443)
        self.reaches(
            self.apiserver(), (EDGE_1[0], 9443), target="/run/default/there", Host="edge-2:10250"
        )

    def test_two_nodes_with_one_address(self):
        """The name in TLS, or the pod, selects the node; otherwise the request is rejected."""
        self.put_node("edge-2", EDGE_1[0])
        self.redirect(EDGE_1[0])
        self.refuses(
            self.apiserver(), 400, "2 nodes: edge-1, edge-2", "=Hostname", Host="edge-1:10250"
        )
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), Host="edge-2:10250")
        self.reaches(self.apiserver(), (EDGE_1[0], 10250), target="/exec/default/here/web")
        self.refuses(self.apiserver("edge-1"), 403, target="/exec/default/there/web")

    def test_unknown_addresses(self):
        """An address of no node is not reached, nor is a cloud node without an agent."""
        self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
        for address in ("192.0.2.77", "10.0.0.3"):
            self.redirect(address)
            self.refuses(self.apiserver("edge-1"), 503, f"{address}:10250", Host="edge-1:10250")

    def test_node_that_claims_what_another_has(self):
        """An address belongs to all nodes that claim it, whatever its type."""
        external = node("edge-1", *EDGE_1, labels=EDGE)
        external["status"]["addresses"].append({"type": "ExternalIP", "address": "203.0.113.9"})
        self.informers.put(NODES, external)
        self.redirect("203.0.113.9")
        self.reaches(self.apiserver(), ("203.0.113.9", 10250))
        self.put_node("edge-2", *EDGE_2, "203.0.113.9")
        self.refuses(self.apiserver(), 400, "2 nodes: edge-1, edge-2")

    def test_many_nodes_with_one_address(self):
        """The response names some of the nodes, within the 1,024 bytes that a client reads."""
        for number in range(40):
            self.put_node(f"edge-with-a-rather-long-name-{number:02}", EDGE_1[0])
        self.redirect(EDGE_1[0])
        caller = self.apiserver()
        fields = {"Connection": "Upgrade", "Upgrade": "websocket"}
        self.send_request(caller, "/exec/default/new/web", **fields)
        self.answered(caller, 400, "41 nodes: edge-1, ", " and 36 more; ")
        body = caller.received.rpartition(b"\r\n\r\n")[2]
        self.assertEqual(400, json.loads(body[:1024])["code"])

    def test_upgrades_that_were_not_redirected(self):
        """If only rules lead here, an upgrade that no rule redirected is for no node."""
        self.refuses(
            self.apiserver(),
            403,
            "no node can be determined",
            target="/exec/default/here/web",
            **UPGRADE,
        )

    def test_unlisted_kube_apiserver_at_unknown_addresses(self):
        """A kube-apiserver not in --allowed-callers chooses nothing by its clients' fields."""
        self.put_node("cloud-1", "10.0.0.3", labels=CLOUD)
        for verb in ("get", "create"):
            for what in ("proxy", "metrics"):
                self.api.rules.add(("jane", verb, what, "edge-1"))
        self.api.tokens["secret"] = "jane"
        for address in ("192.0.2.77", "10.244.7.7", "10.0.0.3"):
            self.redirect(address)
            for caller, proof in (
                (self.jane(), {}),
                (self.jane("edge-1"), {}),
                (self.connect(None, None), {"Authorization": "Bearer secret"}),
            ):
                for fields in (
                    {"Host": "edge-1:10250"},
                    {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-1"},
                ):
                    self.refuses(caller, 503, f"{address}:10250", **fields, **proof)

    def test_addresses_of_the_service(self):
        """A caller that acts for itself may use a node port or external address of the Service."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        for address, port in ((SERVICE, 10250), (EXTERNAL, 10250), ("192.0.2.77", 31250)):
            self.redirect(address, port)
            self.reaches(self.jane(), ("edge-1", 10250), Host="edge-1:10250")
        for address, port in ((EXTERNAL, 9443), ("192.0.2.77", 31251)):
            self.redirect(address, port)
            self.refuses(self.jane(), 503, f"{address}:{port}", Host="edge-1:10250")

    def test_lying_node(self):
        """A node that claims the Service's address gets no connections to that."""
        self.put_node("edge-2", *EDGE_2, SERVICE)
        self.redirect(SERVICE)
        self.reaches(self.apiserver("edge-1"), (EDGE_1[0], 10250), Host=f"{SERVICE}:10250")
        self.refuses(self.apiserver(), 403, "no node can be determined", Host=f"{SERVICE}:10250")

    def test_kubelets_of_other_ports(self):
        """The pod in a path counts on the node's actual kubelet port, and on the usual ones."""
        self.put_node("edge-1", *EDGE_1, port=10350)
        for port in (10250, 10255, 10350):
            self.redirect(EDGE_1[0], port)
            self.refuses(self.apiserver(), 403, "edge-2", target="/run/default/there/web")

    def test_node_that_the_api_does_not_have(self):
        """An agent proves its name by its certificate, but no address that counts here."""
        self.informers.delete(NODES, "edge-1")
        self.redirect(EDGE_1[0])
        self.refuses(self.apiserver("edge-1"), 503, "not the address of a known node")

    def test_unlabelled_node(self):
        """A node with an agent is behind the tunnel, whatever its labels, and so is a labelled one
        that is cut off.
        """
        self.put_node("edge-1", *EDGE_1, labels={})
        self.redirect(EDGE_1[0])
        self.reaches(self.apiserver(), (EDGE_1[0], 10250))
        self.put_node("edge-1", *EDGE_1)
        self.registry.remove(self.registry.direct("edge-1"))
        self.refuses(self.apiserver(), 503, "no agent is connected for edge-1")

    def test_persistent_connection(self):
        """Each request of a connection goes to its destination; the kernel is queried once."""
        self.redirect(EDGE_1[0])
        caller = self.apiserver()
        self.send_request(caller, Host=API_HOSTS[0])
        self.targets.redirected_from = SocketAddress(ip_address(EDGE_2[0]), 10250)
        self.send_request(caller, Host="edge-2:10250")
        self.answered(caller, 200)
        self.assertEqual(len(self.kubelet.exchanges), 2)
        self.assertEqual(self.other.dials, [])
        self.assertEqual([b"10.0.0.1:10250"], self.kubelet.head.values(b"host"))
