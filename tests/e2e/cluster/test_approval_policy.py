"""The policy of deploy/components/approval-policy on a real kube-apiserver."""

from __future__ import annotations

import base64
from dataclasses import replace

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest

from tests.e2e.cluster.real_api import assets
from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.programs import ROOT
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.errors import ApiError
from yurttunnel.kube.loading import load_configuration
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS, Object
from yurttunnel.pki.certificate_template import proxy_client_template
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.issuer import CertificateTemplate

POLICY = ROOT / "deploy" / "components" / "approval-policy" / "policy.yaml"


class ApprovalPolicyTests(ClusterTestCase):
    """Only a real kube-apiserver has admission policies."""

    async def test_the_tunnel_starts_and_its_account_gets_no_more(self):
        """With the policy servers and agents get their certificates, and the servers' account
        can neither request nor approve one for another user.
        """
        if assets() is None:
            raise SkipTest("KUBEBUILDER_ASSETS has no kube-apiserver")
        world = await self.make_world()
        await world.kubectl.output("apply", "-f", str(POLICY))
        await world.add_nodes("edge-1")
        token = world.directory / "stolen.token"
        token.write_text(await world.token("yurt-tunnel-server"))
        path = world.directory / "stolen.kubeconfig"
        config = world.identities.kubeconfig(path, world.url, tokenFile=str(token))
        stolen = KubeClient(reactor, load_configuration(config))
        self.addCleanup(stolen.close)
        own = proxy_client_template()
        other = replace(own, organizations=("kubeadm:cluster-admins",), common_name="somebody")

        async def refused():
            # Policies are in force some seconds after they were made.
            return await self.error_of(self.request(stolen, other)) != ""

        await self.eventually(refused, "the policy is in force", 30, 0.5)
        self.assertIn("tunnel-proxy-client", await self.error_of(self.request(stolen, other)))
        foreign = await self.request(world.client, other)
        self.assertIn("of agents and kubelets", await self.error_of(self.approve(stolen, foreign)))
        await self.approve(stolen, await self.request(stolen, own))
        await self.start_tunnel(world, "edge-1")

    async def error_of(self, call) -> str:
        """Return the API's error."""
        try:
            await call
        except ApiError as error:
            return str(error)
        return ""

    async def request(self, client: KubeClient, template: CertificateTemplate) -> Object:
        """Request a certificate."""
        spec = {
            "request": base64.b64encode(template.request(new_key())).decode(),
            "signerName": template.signer,
            "usages": template.usages,
        }
        body = {"metadata": {"generateName": "csr-"}, "spec": spec}
        return await client.create(CERTIFICATE_SIGNING_REQUESTS, body)

    async def approve(self, client: KubeClient, request: Object) -> None:
        """Approve a certificate request."""
        condition = {"type": "Approved", "status": "True", "reason": "Test", "message": "a test"}
        approved = {**request, "status": {"conditions": [condition]}}
        await client.update(CERTIFICATE_SIGNING_REQUESTS, approved, "approval")
