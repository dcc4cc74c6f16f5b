"""The identity of a request: the node's, or that of its token's owner."""

from __future__ import annotations

from tests.apiserver.bootstrap_roles import rule
from tests.e2e.hub.canned import Canned
from tests.e2e.hub.clients import names
from tests.e2e.hub.cloud import READ
from tests.e2e.hub.node_requests import NODE_PODS, SECRETS
from tests.e2e.hub.support import HubTestCase
from tests.hub.request.tokens import service_account_token

PASSWORD = f"{SECRETS}/password"


class TokenTests(HubTestCase):
    """Tokens of service accounts on loopback."""

    async def furnished(self):
        """Start, with a Secret that one account may read."""
        cloud, hub = await self.start()
        cloud.add("secrets", "password", "default", data={"password": "c2VjcmV0"}, type="Opaque")
        cloud.using("web", secrets=["password"])
        cloud.add("serviceaccounts", "reader", "default")
        cloud.add("serviceaccounts", "other", "default")
        cloud.grant("system:serviceaccounts", rule(READ, "", "secrets", "pods"))
        return cloud, hub

    async def test_a_request_with_a_token_is_its_owners(self) -> None:
        """The API sees the account, and not the node."""
        cloud, hub = await self.furnished()
        reader = self.client(hub, "coredns", token=cloud.token("reader"))
        await reader.get(PASSWORD)
        readers = {name for name, what, _ in cloud.requests if what.name == "password"}
        self.assertEqual(readers, {"system:serviceaccount:default:reader"})

    async def test_an_accepted_token_gets_its_own_data(self) -> None:
        """It gets no data of other accounts."""
        cloud, hub = await self.furnished()
        reader = self.client(hub, "coredns", token=cloud.token("reader"))
        other = self.client(hub, "coredns", token=cloud.token("other"))
        found = await reader.get(PASSWORD)
        await other.get("/api/v1/pods")
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        self.assertEqual(await reader.get(PASSWORD), found)
        await other.refused((403, 404, 503), PASSWORD)
        self.assertEqual(names(await other.get("/api/v1/pods")), ["web"])

    async def test_a_token_that_was_never_accepted_gets_nothing(self) -> None:
        """Invalid and unknown tokens are rejected offline."""
        cloud, hub = await self.furnished()
        kubelet = self.client(hub)
        await kubelet.get(NODE_PODS)
        await kubelet.get(PASSWORD)
        unseen = cloud.token("other")
        await self.disconnect(cloud, hub)
        for token in ("nonsense", "a.b.c", unseen):
            stranger = self.client(hub, "kubelet", token=token)
            for path in (PASSWORD, NODE_PODS):
                await stranger.refused(401, path)

    async def test_a_forged_token_gets_nothing(self) -> None:
        """Also if the request makes the API respond before or without checking the token."""
        cloud, hub = await self.furnished()
        reader = self.client(hub, "coredns", token=cloud.token("reader"))
        found = await reader.get(PASSWORD)
        forged = service_account_token("default", "reader")
        forger = self.client(hub, "coredns", token=forged)
        # Like kube-apiserver, which parses the timeout of a request before it checks the token.
        cloud.answers[PASSWORD] = Canned(b'{"kind": "Status"}', status=400)
        self.assertEqual((await forger.ask(f"{PASSWORD}?timeout=x")).status, 400)
        del cloud.answers[PASSWORD]
        nobody = self.client(hub, "coredns")
        spaces = (b"Authorization", f"Bearer  {forged}".encode())
        self.assertEqual((await nobody.ask(PASSWORD, fields=[spaces])).status, 401)
        named = (b"Connection", b"authorization")
        for target in (PASSWORD, "/version"):
            self.assertEqual((await forger.ask(target, fields=[named])).status, 401)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        await forger.refused(401, PASSWORD)
        self.assertEqual((await nobody.ask(PASSWORD, fields=[spaces])).status, 401)
        self.assertEqual(await reader.get(PASSWORD), found)

    async def test_a_token_that_the_cloud_refuses_is_refused_later(self) -> None:
        """An account that was deleted while online gets nothing offline."""
        cloud, hub = await self.furnished()
        reader = self.client(hub, "coredns", token=cloud.token("reader"))
        await reader.get(PASSWORD)
        cloud.remove("serviceaccounts", "reader", "default")
        await reader.refused(401, PASSWORD)
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        await reader.refused(401, PASSWORD)

    async def test_a_token_is_in_no_log(self) -> None:
        """Neither the token nor a part of it is logged."""
        cloud, hub = await self.furnished()
        token = cloud.token("reader")
        reader = self.client(hub, "coredns", token=token)
        await reader.get(PASSWORD)
        await self.disconnect(cloud, hub)
        await reader.get(PASSWORD)
        self.assertNotIn(token.split(".")[2], hub.log)
        self.assertNotIn("c2VjcmV0", hub.log)
