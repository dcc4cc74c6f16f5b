"""Approval of the certificate requests of agents."""

from __future__ import annotations

from cryptography import x509

from tests.pki.signing_requests import (
    AGENT,
    BOUND_TO_NODE,
    BOUND_TO_POD,
    EDGE_1,
    KUBELET,
    POD,
    SERVER,
    World,
    agent_request,
    node,
    request_pem,
    signing_request,
    template_request,
)
from yurttunnel.cluster.nodes import MAX_ADDRESSES
from yurttunnel.pki.approval_decision import MAX_FURTHER_NAMES, Reason
from yurttunnel.pki.cluster_identity import agent_template
from yurttunnel.pki.identity import Identifiers


class AgentTests(World):
    """The certificate of a node."""

    def test_kubelet(self):
        """It is approved for the node's own kubelet."""
        self.approves(agent_request(), "agent of node edge-1", KUBELET, node=node())

    def test_many_addresses(self):
        """Only the first addresses of a node count, however many it reports."""
        many = [("InternalIP", f"10.0.0.{number}") for number in range(1, MAX_ADDRESSES)]
        own = ("InternalIP", "192.0.2.7")
        self.approves(agent_request(), node=node("edge-1", *many, own))
        self.does_not_approve(
            Reason.NAMES, agent_request(), "192.0.2.7", node=node("edge-1", *many, many[0], own)
        )

    def test_other_kubelet(self):
        """It is left alone for another node's kubelet, and the message names both."""
        self.does_not_approve(
            Reason.REQUESTER,
            agent_request("system:node:edge-2"),
            "'system:node:edge-2' requests the certificate of node edge-1",
            node=node(),
        )

    def test_kubelet_without_group(self):
        """It is left alone for a user with a node's name but not its group."""
        self.does_not_approve(
            Reason.REQUESTER, agent_request(groups=["system:authenticated"]), node=node()
        )

    def test_account_on_node(self):
        """It is approved for the agent's account with a token bound to the node."""
        csr = agent_request(AGENT, extra=BOUND_TO_NODE)
        self.approves(csr, AGENT, node=node())
        self.assertEqual(["edge-1"], self.read)

    def test_account_in_pod(self):
        """If the token does not name the node, the pod's node counts."""
        csr = agent_request(AGENT, extra=BOUND_TO_POD)
        self.approves(csr, AGENT, node=node(), pod=POD)
        self.assertEqual(["edge-1", "yurt-tunnel-agent-x7x7x"], self.read)

    def test_account_on_other_node(self):
        """It is left alone for a token bound to another node, or to a pod there."""
        extra = {**BOUND_TO_NODE, "authentication.kubernetes.io/node-name": ["edge-2"]}
        elsewhere = {**POD, "spec": {"nodeName": "edge-2"}}
        words = f"{AGENT} on node edge-2 requests the certificate of node edge-1"
        for csr, pod in (
            (agent_request(AGENT, extra=extra), None),
            (agent_request(AGENT, extra=extra), POD),
            (agent_request(AGENT, extra=BOUND_TO_POD), elsewhere),
        ):
            self.does_not_approve(Reason.REQUESTER, csr, words, node=node(), pod=pod)

    def test_unbound(self):
        """It is left alone for a token that is not bound."""
        name = "authentication.kubernetes.io/pod-name"
        for extra in (None, {}, {name: []}, {name: [""]}, {name: ["a", "b"]}, {name: "a"}):
            csr = agent_request(AGENT, extra=extra)
            self.does_not_approve(
                Reason.UNBOUND_TOKEN, csr, "not bound to a pod", node=node(), pod=POD
            )
            self.assertEqual(["edge-1"], self.read)

    def test_pod_is_gone(self):
        """A pod that is gone, was replaced, or is not scheduled does not identify the node."""
        csr = agent_request(AGENT, extra=BOUND_TO_POD)
        self.does_not_approve(
            Reason.UNBOUND_TOKEN, csr, "is not in kube-system any more", node=node()
        )
        other = {**POD, "metadata": {**POD["metadata"], "uid": "another"}}
        self.does_not_approve(Reason.UNBOUND_TOKEN, csr, "that was deleted", node=node(), pod=other)
        for spec in (None, {}, {"nodeName": ""}, {"nodeName": 5}):
            nowhere = {**POD, "spec": spec}
            self.does_not_approve(
                Reason.UNBOUND_TOKEN, csr, "is not scheduled", node=node(), pod=nowhere
            )

    def test_node_was_replaced(self):
        """A token bound to a deleted node is not valid for a new node of the same name."""
        extra = {**BOUND_TO_NODE, "authentication.kubernetes.io/node-uid": ["another"]}
        csr = agent_request(AGENT, extra=extra)
        self.does_not_approve(
            Reason.UNBOUND_TOKEN, csr, "node edge-1 that was deleted", node=node()
        )

    def test_other_accounts(self):
        """It is left alone for all other accounts, whatever their tokens are bound to."""
        for requester in (
            SERVER,
            "system:serviceaccount:default:yurt-tunnel-agent",
            "yurt-tunnel-agent",
        ):
            csr = agent_request(requester, extra=BOUND_TO_NODE)
            self.does_not_approve(Reason.REQUESTER, csr, ascii(requester), node=node())

    def test_unknown_node(self):
        """A request for an unknown node may be approved later."""
        self.does_not_approve(
            Reason.UNKNOWN_NODE, agent_request(), "no node edge-1", "checked again"
        )

    def test_names_of_node(self):
        """All names and addresses in the node's object may be requested."""
        found = node(
            "edge-1",
            ("InternalIP", "192.0.2.7"),
            ("InternalIP", "2001:db8::7"),
            ("ExternalIP", "198.51.100.7"),
            ("Hostname", "Edge-1.Example"),
            ("InternalDNS", "edge-1.internal"),
        )
        text = (
            "host=edge-1&host=edge-1.example&host=edge-1.internal"
            "&ipv4=192.0.2.7&ipv6=2001:db8::7&ipv4=198.51.100.7"
        )
        self.approves(agent_request(text=text), node=found)

    def test_foreign_names(self):
        """Other names and addresses are left alone, and the message lists them."""
        for item in ("host=edge-2", "host=kubernetes", "ipv4=192.0.2.8", "ipv6=2001:db8::8"):
            csr = agent_request(text=f"host=edge-1&{item}")
            value = item.partition("=")[2]
            self.does_not_approve(
                Reason.NAMES, csr, f"'{value}' does not belong to node edge-1", node=node()
            )

    def test_address_has_changed(self):
        """For a former address of the node, the message tells how the agent gets the new one."""
        self.does_not_approve(
            Reason.NAMES,
            agent_request(text="host=edge-1&ipv4=192.0.2.8"),
            "'192.0.2.8' does not belong to node edge-1",
            "restart the agent's pod",
            "--node-ip",
            node=node(),
        )
        decision = self.decide(agent_request(text="host=edge-1&ipv4=192.0.2.8"), node=node())
        self.assertNotIn("--agent-identifiers", decision.message)
        decision = self.decide(agent_request(text="host=edge-1&host=camera"), node=node())
        self.assertIn("Leave 'camera' out of the agent's --agent-identifiers", decision.message)
        self.assertNotIn("--node-ip", decision.message)

    def test_name_of_other_node(self):
        """The name of another node is left alone, even if the node reports it."""
        found = node("edge-1", ("InternalIP", "192.0.2.7"), ("Hostname", "edge-2"))
        csr = agent_request(text="host=edge-1&host=edge-2")
        words = ("'edge-2' is the name of another node", "node edge-1 cannot have it")
        self.does_not_approve(Reason.OTHER_NODE, csr, *words, node=found, others=["edge-2"])
        self.assertEqual(["edge-1", "edge-2"], self.read)
        self.assertTrue(self.decide(csr, node=found, others=["edge-2"]).may_change)
        self.approves(csr, node=found)

    def test_own_name_is_not_another(self):
        """A node's own name is not looked up as another node's."""
        self.approves(agent_request(), node=node(), others=["edge-1"])
        self.assertEqual(["edge-1"], self.read)

    def test_many_names(self):
        """A request with more names than the lookup limit is left alone."""
        for count in (MAX_FURTHER_NAMES, MAX_FURTHER_NAMES + 1):
            hosts = [f"h{number}.example" for number in range(count)]
            found = node("edge-1", *(("Hostname", host) for host in hosts))
            csr = agent_request(text="&".join(f"host={host}" for host in ["edge-1", *hosts]))
            if count == MAX_FURTHER_NAMES:
                self.approves(csr, node=found)
                self.assertEqual(["edge-1", *hosts], self.read)
            else:
                self.does_not_approve(Reason.NAMES, csr, f"{count} host names", node=found)
                self.assertEqual(["edge-1"], self.read)

    def test_strange_names(self):
        """A name that no node's certificate can have is left alone, even if the node reports it."""
        for host in ("*.example", "edge_2"):
            found = node("edge-1", ("Hostname", host))
            csr = signing_request(request_pem(names=[*EDGE_1, x509.DNSName(host)]), KUBELET)
            self.does_not_approve(
                Reason.NAMES, csr, f"'{host}' does not belong to node", node=found
            )
            self.assertEqual(["edge-1"], self.read)

    def test_networks(self):
        """Networks and the default route are left alone, since they cover other nodes."""
        for item in ("cidr=10.0.0.0/8", "default-route=true"):
            self.does_not_approve(
                Reason.MALFORMED, agent_request(text=f"host=edge-1&{item}"), node=node()
            )

    def test_malformed_node(self):
        """A malformed node object has only the node's name."""
        for status in (None, [], {"addresses": "x"}, {"addresses": [None, {"address": 5}]}):
            found = {"metadata": {"name": "edge-1"}, "status": status}
            self.approves(agent_request(text="host=edge-1"), node=found)
            self.does_not_approve(Reason.NAMES, agent_request(), "'192.0.2.7'", node=found)

    def test_name_and_common_name(self):
        """The common name has to be that of exactly one node."""
        for common_name, hosts in (
            ("tunnel-agent:edge-1", ["edge-2"]),
            ("tunnel-agent:edge-1", []),
            ("tunnel-agent:", ["edge-1"]),
            ("tunnel-agent:EDGE-1", ["EDGE-1"]),
        ):
            pem = request_pem(
                [("O", "openyurt:yurttunnel"), ("CN", common_name)],
                [x509.DNSName(host) for host in hosts],
            )
            csr = signing_request(pem, KUBELET)
            self.does_not_approve(Reason.NAMES, csr, node=node())
            self.assertEqual([], self.read)

    def test_long_name(self):
        """A node whose name is too long for a common name gets its certificate, too."""
        name = "edge-1." + "x" * 60 + ".example.com"
        template = agent_template(name, Identifiers(frozenset({name})))
        csr = template_request(template, f"system:node:{name}")
        self.approves(csr, name, node=node(name))
        self.assertEqual([name], self.read)
