"""Approval of the certificates of a node's hub."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing_requests import SERVER, Cluster, template_request
from yurttunnel.pki.approval_decision import Reason
from yurttunnel.pki.approval_requests import Kind, is_for_tunnel, recognize
from yurttunnel.pki.certificate_template import hub_client_template, hub_serving_template

CLIENT = hub_client_template("edge-1")
SERVICE = ip_address("10.96.0.1")
SERVING = hub_serving_template(
    "edge-1", [ip_address("127.0.0.1"), ip_address("169.254.2.1"), ip_address("fd00::2:1"), SERVICE]
)
NODE = {"username": "system:node:edge-1", "groups": ["system:nodes", "system:authenticated"]}
JOINING = {
    "username": "system:bootstrap:abcdef",
    "groups": ["system:bootstrappers", "system:authenticated"],
}


class HubTests(SynchronousTestCase):
    """Requests by hubs and by others."""

    def request(self, template, who):
        """Create a request."""
        username = who["username"]
        request = recognize(template_request(template, username, groups=who["groups"]))
        self.assertIsNotNone(request)
        return request

    def decide(self, template, who, **cluster):
        """Decide about a request; ``read`` has what the decision has read."""
        known = Cluster(**cluster)
        decision = known.decide(self.request(template, who))
        self.read = known.read
        return decision

    def approved(self, template, who, **cluster):
        """Assert that a request is approved."""
        decision = self.decide(template, who, **cluster)
        self.assertTrue(decision.approved, decision.message)
        self.assertIn("hub of node 'edge-1'", decision.message)

    def not_approved(self, reason, template, who, *words, **cluster):
        """Assert that a request is left alone, with the message."""
        decision = self.decide(template, who, **cluster)
        self.assertIs(reason, decision.reason, decision.message)
        for each in words:
            self.assertIn(each, decision.message)

    def test_kinds(self):
        """The two kinds are recognized by organizations or names that only hubs request."""
        self.assertIs(Kind.HUB, self.request(CLIENT, NODE).kind)
        self.assertIs(Kind.HUB_SERVING, self.request(SERVING, NODE).kind)
        of_kubelet = replace(SERVING, dns_names=("edge-1",))
        of_another = replace(CLIENT, organizations=("system:nodes",))
        for template in (of_kubelet, of_another):
            self.assertFalse(is_for_tunnel(template_request(template, NODE["username"])))

    def test_long_names(self):
        """Node names may have the length that Kubernetes allows, beyond X.520."""
        long = "n" * 63 + "." + "x" * 63
        who = {**NODE, "username": f"system:node:{long}"}
        self.assertTrue(self.decide(hub_client_template(long), who).approved)

    def test_renewal(self):
        """A node renews its own certificates."""
        self.approved(CLIENT, NODE)
        self.assertEqual([], self.read)

    def test_joining(self):
        """A user that may become a node by a bootstrap token gets its first certificate."""
        self.approved(CLIENT, JOINING, may_join=True)
        self.assertEqual([("subjectaccessreviews", None)], self.read)
        self.not_approved(Reason.REQUESTER, CLIENT, JOINING, "nodeclient", may_join=False)

    def test_others(self):
        """Other nodes, the servers' account and users with only the name get none."""
        for who in (
            {**NODE, "username": "system:node:edge-2"},
            {**NODE, "groups": ["system:authenticated"]},
            {"username": SERVER, "groups": ["system:authenticated"]},
            {**JOINING, "groups": ["system:authenticated"]},
            {**JOINING, "username": "ada"},
        ):
            self.not_approved(
                Reason.REQUESTER, CLIENT, who, "find out what sends it", may_join=True
            )
            self.not_approved(
                Reason.REQUESTER, SERVING, who, "only that node may have", may_join=True
            )

    def test_organizations(self):
        """Further organizations are approved only for a node that is a member already."""
        further = hub_client_template("edge-1", ["openyurt:tenant:a"])
        self.not_approved(Reason.ORGANIZATION, further, NODE, "'openyurt:tenant:a'")
        member = {**NODE, "groups": [*NODE["groups"], "openyurt:tenant:a"]}
        self.approved(further, member)
        joining = {**JOINING, "groups": [*JOINING["groups"], "openyurt:tenant:a"]}
        self.not_approved(Reason.ORGANIZATION, further, joining, may_join=True)
        masters = hub_client_template("edge-1", ["system:masters"])
        self.not_approved(Reason.ORGANIZATION, masters, NODE, "system:masters")
        alone = replace(CLIENT, organizations=("openyurt:yurthub",))
        self.not_approved(Reason.ORGANIZATION, alone, NODE, "'system:nodes'")
        serving = replace(SERVING, organizations=("system:masters",))
        self.not_approved(Reason.ORGANIZATION, serving, NODE, "system:masters")

    def test_names_of_a_client(self):
        """The certificate for the API has no alternative names."""
        named = replace(CLIENT, dns_names=("kubernetes.default.svc",))
        self.not_approved(Reason.NAMES, named, NODE, "kubernetes.default.svc")

    def test_serving(self):
        """The certificate for pods has the API's names and addresses of the hub."""
        self.approved(SERVING, NODE, service=str(SERVICE))
        self.assertEqual([("services", "kubernetes")], self.read)
        self.not_approved(Reason.NAMES, SERVING, NODE, "10.96.0.1")
        public = replace(SERVING, addresses=(ip_address("192.0.2.1"),))
        self.not_approved(Reason.NAMES, public, NODE, "192.0.2.1")
        chosen = replace(SERVING, addresses=(ip_address("fd00::3:1"),))
        self.not_approved(Reason.NAMES, chosen, NODE, "fd00::3:1", "link-local, fd00::2:1,")
        named = replace(SERVING, dns_names=(*SERVING.dns_names, "x-tunnel-server-svc"))
        self.not_approved(Reason.NAMES, named, NODE, "x-tunnel-server-svc")

    def test_no_node(self):
        """A name that no node can have is left alone."""
        for name in ("", "Edge", "a b", "edge-1/x"):
            template = replace(CLIENT, common_name=f"system:node:{name}")
            who = {**NODE, "username": template.common_name}
            self.not_approved(Reason.NAMES, template, who, "is not a valid name of a node")
            self.assertEqual([], self.read)

    def test_usages(self):
        """Each certificate has one usage."""
        request = recognize(
            template_request(CLIENT, NODE["username"], usages=["digital signature", "server auth"])
        )
        self.assertIs(Reason.USAGES, Cluster().decide(request).reason)
