"""Many permanently active streams, none of which may be lost."""

from __future__ import annotations

import hashlib
import os

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import LoopingCall

from tests.e2e.clients import RequestClient, Target

PIECE = 512
"""The number of bytes that a stream sends at once."""

INTERVAL = 0.5
"""Seconds between two chunks of a stream."""


class Trickle(RequestClient):
    """Sends small chunks periodically; the digest of all of them is compared at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._sending = LoopingCall(self._send)
        self.sent = 0

    def connectionMade(self) -> None:
        """Start sending."""
        super().connectionMade()
        self._sending.start(INTERVAL)

    def connectionLost(self, reason) -> None:
        """Send no more."""
        self._stop()
        super().connectionLost(reason)

    def finish(self) -> Deferred:
        """Stop sending; fires with the other end's digest of the received data."""
        self._stop()
        self.transport.loseWriteConnection()
        return self.when_read_ended()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of everything sent so far, in hexadecimal."""
        return self._hash.hexdigest()

    def _stop(self) -> None:
        if self._sending.running:
            self._sending.stop()

    def _send(self) -> None:
        piece = os.urandom(PIECE)
        self._hash.update(piece)
        self.sent += len(piece)
        self.transport.write(piece)


class Crowd:
    """A number of streams to one target; ``connect`` is called with each client."""

    def __init__(self, case, target: Target, connect) -> None:
        self._case = case
        self._target = target
        self._connect = connect
        self._clients: list[Trickle] = []

    def __len__(self) -> int:
        """Return the number of streams opened."""
        return len(self._clients)

    async def open_all(self, size: int) -> None:
        """Open the streams."""
        while len(self._clients) < size:
            client = Trickle()
            await self._connect(client)
            self._clients.append(client)

    async def assert_progress(self) -> None:
        """Wait until every stream has carried more data than when this was called."""
        await self._case.eventually(
            lambda: len(self._target.peers) == len(self._clients), "the target has all streams"
        )
        before = [peer.received for peer in self._target.peers]

        def all_have() -> bool:
            return all(
                peer.received > old for peer, old in zip(self._target.peers, before, strict=True)
            )

        await self._case.eventually(all_have, f"all {len(before)} streams go on", 20)

    async def assert_complete(self) -> None:
        """Finish all streams, and compare for each the sent data with the received data."""
        await gatherResults([client.finish() for client in self._clients])
        for client in self._clients:
            self._case.assertGreater(client.sent, 0)
            self._case.assertEqual(client.answer.decode(), client.digest)
        total = sum(client.sent for client in self._clients)
        print(f"\n{len(self._clients)} streams carried {total} bytes, none was lost")
