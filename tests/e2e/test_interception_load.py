"""Many clients of the ports for requests to kubelets."""

from __future__ import annotations

from twisted.internet import reactor

from tests.e2e.http_clients import HttpClient
from tests.e2e.interception import Frontend, InterceptionTestCase
from tests.e2e.kubelets import HELLO, Request, chunk, hello, response_head, routes
from tests.e2e.test_interception import together

CHUNKED = [(b"Transfer-Encoding", b"chunked")]

CLIENTS, REQUESTS = 200, 20

POOL = 32
"""The maximum number of concurrent connections to one kubelet for short requests."""

FOLLOWERS = POOL + 8
"""Long requests, more than the maximum of such connections."""


class PoolTests(InterceptionTestCase):
    """Many clients share few connections to a kubelet."""

    async def test_two_hundred_clients_share_a_bounded_pool(self) -> None:
        """Connections and TLS handshakes at the kubelet are limited to the pool's size."""

        async def number(request: Request) -> None:
            await request.ended()
            request.answer(200, request.target)

        tunnel = await self.start_tunnel()
        door = Frontend(self, tunnel, self.secure_kubelet(tunnel, number))
        before = self.descriptors_of(tunnel)

        async def client(index: int) -> HttpClient:
            client = await door.client()
            for acquire_slot in range(REQUESTS):
                target = f"/{index}/{acquire_slot}"
                got = await client.ask(target).whole()
                self.assertEqual((got.status, got.body.decode()), (200, target))
            self.assertEqual(client.unexpected, b"")
            return client

        began = reactor.seconds()
        clients = await self.within(
            40, together(*(client(index) for index in range(CLIENTS))), "all are answered"
        )
        elapsed = reactor.seconds() - began
        kubelet = door.kubelet
        print(
            f"\n{CLIENTS * REQUESTS} requests in {elapsed:.1f} s over {len(kubelet.connections)} "
            f"connections, {kubelet.handshakes} handshakes"
        )
        self.assertEqual(len(kubelet.requests), CLIENTS * REQUESTS)
        self.assertLessEqual(len(kubelet.connections), POOL)
        self.assertLessEqual(kubelet.handshakes, POOL)
        handshakes = "yurttunnel_server_kubelet_tls_handshakes_total"
        self.assertEqual(await tunnel.server.metric(handshakes, result="done"), kubelet.handshakes)
        for each in clients:
            each.drop()
        await self.assert_no_leftovers(tunnel, [door], before)

    async def test_followers_do_not_starve_short_requests(self) -> None:
        """With more long requests than connections in the pool, short ones are still served."""

        async def follow(request: Request) -> None:
            await request.ended()
            request.send(response_head(200, CHUNKED) + chunk(b"line\n"))

        tunnel, frontends = await self.start_with_frontends(routes(follow=follow, hello=hello))
        before = self.descriptors_of(tunnel)
        await together(*(self.follow(door) for door in frontends))
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def follow(self, door: Frontend) -> None:
        """Use up the connections for short requests, and make a short one."""
        clients = [await door.client() for _ in range(FOLLOWERS)]
        for answer in [client.ask("/follow?follow=true") for client in clients]:
            await self.within(5, answer.begun(), f"{door.name}: all follow")
        # The youngest of them count for another second.
        short = await self.within(3, door.get("/hello"), f"{door.name}: others are answered")
        self.assertEqual(short.body, HELLO)
        for client in clients:
            client.drop()
        await self.eventually(
            lambda: len(door.kubelet.open) <= 1, f"{door.name}: the kubelet is told", 3
        )
