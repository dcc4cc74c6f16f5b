"""Tests of the machines, endpoints and clients that these tests use."""

from __future__ import annotations

from tests.e2e.proxy.network import CLIENT, address
from tests.e2e.proxy.objects import BOTH, TARGET_PORT
from tests.e2e.proxy.support import LOCAL, REMOTE, ProxyTestCase
from tests.e2e.proxy.traffic import CLOSED, REFUSED, UNANSWERED

SERVING, REFUSING, SILENT = REMOTE
MAX_DATAGRAM_BYTES = bytes(9000)


class NetworkTests(ProxyTestCase):
    """Without a proxy."""

    async def test_clients_and_endpoints(self) -> None:
        """Endpoints return their own and the client's address; dead ones refuse, or are silent;
        failures are reported.
        """
        self.serve(SERVING, SILENT, *LOCAL)
        self.network.drop_packets("outside", SILENT.number)
        for version in BOTH:
            client = address("clients", CLIENT, version)
            for pod in (SERVING, *LOCAL):
                host = pod.address(version)
                called = await self.assert_served(host, TARGET_PORT, size=300_000)
                by_ask = await self.ask(host, TARGET_PORT, MAX_DATAGRAM_BYTES)
                for answer in (called, by_ask):
                    self.assertEqual((answer.endpoint, answer.client), (host, client))
            for pod, by_tcp, by_udp, answer_timeout in (
                (REFUSING, REFUSED, REFUSED, 10.0),
                (SILENT, "TimeoutError", UNANSWERED, 0.3),
            ):
                host = pod.address(version)
                answer = await self.call(host, TARGET_PORT, answer_timeout=answer_timeout)
                self.assertEqual((answer.endpoint, answer.problem), ("", by_tcp))
                answer = await self.ask(host, TARGET_PORT, answer_timeout=answer_timeout)
                self.assertEqual((answer.endpoint, answer.problem), ("", by_udp))
        staying = self.dial(SERVING.address(6), TARGET_PORT, keeps_open=True)
        await staying.greeted
        await self.end(SERVING)
        self.assertEqual((await staying.answered).problem, CLOSED)
