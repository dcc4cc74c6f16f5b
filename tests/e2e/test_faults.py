"""The fault proxy and the load clients work as the other tests assume."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError

from tests.e2e.clients import (
    AnswerAfterEnd,
    Download,
    Echo,
    EchoClient,
    RequestClient,
    Sink,
    Source,
    Stalled,
    is_broken,
)
from tests.e2e.faults import FullQueue
from tests.e2e.support import EndToEndTestCase

SIZE = 20_000_000


class FaultProxyTests(EndToEndTestCase):
    """:class:`tests.e2e.faults.FaultProxy` between a client and a plain target."""

    async def test_without_faults_downloads_are_complete(self) -> None:
        """A download has the hash of the source."""
        target = self.listen(lambda: Source(SIZE))
        proxy = self.fault_proxy(target.port)
        download = await self.dial(proxy.port, Download())
        await download.when_lost()
        self.assertTrue(download.ended_cleanly)
        self.assertEqual(download.received, SIZE)
        self.assertEqual(download.digest, target.peers[0].payload.digest)

    async def test_without_faults_uploads_are_complete(self) -> None:
        """A sink answers with the hash of the upload."""
        target = self.listen(Sink)
        proxy = self.fault_proxy(target.port)
        upload = await self.dial(proxy.port, Source(SIZE))
        await upload.when_read_ended()
        self.assertEqual(upload.answer.decode(), upload.payload.digest)

    async def test_slices_of_a_few_bytes_change_nothing(self) -> None:
        """Bytes split into pieces of 1 to 7 arrive in order, before a half-close."""
        target = self.listen(AnswerAfterEnd)
        proxy = self.fault_proxy(target.port)
        proxy.up.slice_size = proxy.down.slice_size = 7
        text = bytes(range(256)) * 8
        question = await self.dial(proxy.port, RequestClient(text, finish=True))
        await question.when_read_ended()
        self.assertEqual(question.answer, b"got:" + text)

    async def test_latency_delays_each_direction(self) -> None:
        """A round trip takes at least the sum of both latencies."""
        target = self.listen(Echo)
        proxy = self.fault_proxy(target.port)
        proxy.up.latency = proxy.down.latency = 0.05
        echo = await self.dial(proxy.port, EchoClient(reactor))
        self.assertGreaterEqual(await echo.round_trip(), 0.1)

    async def test_bandwidth_bounds_the_rate(self) -> None:
        """A megabyte at two megabytes a second takes half a second."""
        target = self.listen(lambda: Source(1_000_000))
        proxy = self.fault_proxy(target.port)
        proxy.down.bandwidth = 2_000_000
        started = reactor.seconds()
        download = await self.dial(proxy.port, Download())
        await download.when_lost()
        self.assertEqual(download.digest, target.peers[0].payload.digest)
        self.assertGreaterEqual(reactor.seconds() - started, 0.45)

    async def test_turns_pause_a_conversation(self) -> None:
        """Data after that many messages is dropped, and the end of one side ends the other."""
        target = self.listen(Echo)
        proxy = self.fault_proxy(target.port)
        for turns, answer in ((1, b""), (2, b"one")):
            proxy.turns = turns
            client = await self.dial(proxy.port, RequestClient(b"one"))
            if turns > 1:
                await self.eventually(lambda client=client: client.answer == b"one", "it answers")
                client.transport.write(b"two")
            await self.eventually(lambda: any(link.held for link in proxy.links), "it is held")
            self.assertEqual(client.answer, answer)
            self.assertEqual(target.peers[-1].received, len(b"one"))
            client.drop()
            await self.within(5, target.peers[-1].when_lost(), "the target's side ends")

    async def test_a_full_queue_accepts_when_there_is_room(self) -> None:
        """A client waits, and is connected when the one before has been accepted."""
        queue = FullQueue()
        self.addCleanup(queue.close)
        waiting = Deferred.fromCoroutine(self.dial(queue.port, RequestClient()))
        await self.pause(0.5)
        self.assertFalse(waiting.called)
        queue.make_room()
        await self.within(5, waiting, "the connection is made")

    async def test_reset_breaks_both_sides(self) -> None:
        """Both connections of client and target break."""
        target = self.listen(Echo)
        proxy = self.fault_proxy(target.port)
        echo = await self.dial(proxy.port, EchoClient(reactor))
        await echo.round_trip()
        self.assertEqual(proxy.for_all("reset"), 1)
        await echo.when_lost()
        await target.peers[0].when_lost()
        self.assertTrue(is_broken(echo))
        self.assertTrue(is_broken(target.peers[0]))

    async def test_limit_resets_after_so_many_bytes(self) -> None:
        """A connection breaks after the limit."""
        target = self.listen(lambda: Source(SIZE))
        proxy = self.fault_proxy(target.port)
        proxy.down.limit = 1_000_000
        download = await self.dial(proxy.port, Download())
        await download.when_lost()
        self.assertTrue(is_broken(download))
        self.assertLess(download.received, 1_000_000)

    async def test_black_hole_does_not_affect_new_connections(self) -> None:
        """The old connection carries nothing and stays open while a new one works."""
        target = self.listen(Echo)
        proxy = self.fault_proxy(target.port)
        for fault in ("black_hole", "swallow"):
            old = await self.dial(proxy.port, RequestClient(b"one"))
            await self.eventually(lambda old=old: old.answer == b"one", "the echo answers")
            proxy.for_all(fault)
            old.transport.write(b"two")
            new = await self.dial(proxy.port, EchoClient(reactor))
            await new.round_trip()
            self.assertEqual(old.answer, b"one")
            self.assertIsNone(old.lost_reason)

    async def test_half_dead_carries_one_direction_only(self) -> None:
        """With the other direction stopped the target still receives data."""
        target = self.listen(Echo)
        proxy = self.fault_proxy(target.port)
        question = await self.dial(proxy.port, RequestClient(b"one"))
        await self.eventually(lambda: question.answer == b"one", "the echo answers")
        for link in proxy.links:
            link.down.stop()
        question.transport.write(b"two")
        await self.eventually(lambda: target.peers[0].received == 6, "the target receives")
        self.assertEqual(question.answer, b"one")

    async def test_a_forgetful_nat_resets_the_client_and_leaves_the_server_in_the_dark(
        self,
    ) -> None:
        """The client's side breaks, the server's side receives nothing."""
        target = self.listen(Echo)
        proxy = self.fault_proxy(target.port)
        echo = await self.dial(proxy.port, EchoClient(reactor))
        await echo.round_trip()
        proxy.for_all("forget")
        await echo.when_lost()
        second = await self.dial(proxy.port, EchoClient(reactor))
        await second.round_trip()
        self.assertIsNone(target.peers[0].lost_reason)

    async def test_refuse_closes_the_port_until_restarted(self) -> None:
        """New connections are refused, and accepted again on the same port afterwards."""
        target = self.listen(Echo)
        proxy = self.fault_proxy(target.port)
        await proxy.refuse()
        with self.assertRaises(ConnectionRefusedError):
            await self.dial(proxy.port, RequestClient())
        proxy.start()
        echo = await self.dial(proxy.port, EchoClient(reactor))
        await echo.round_trip()

    async def test_a_stalled_reader_stops_its_source(self) -> None:
        """A reader that reads nothing bounds the sent data, also through the proxy."""
        target = self.listen(lambda: Source(None, hashed=False))
        proxy = self.fault_proxy(target.port)
        await self.dial(proxy.port, Stalled())
        await self.eventually(lambda: target.peers, "the target is reached")
        source = target.peers[0]
        last = -1

        def rests() -> bool:
            nonlocal last
            previous, last = last, source.payload.sent
            return previous == last

        await self.eventually(rests, "the source rests", interval=0.2)
        self.assertLess(source.payload.sent, 32 * 1024 * 1024)
