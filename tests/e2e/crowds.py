"""Many streams that run all the time, of which none may be lost."""

from __future__ import annotations

import hashlib
import os

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import LoopingCall

from tests.e2e.clients import RequestClient, Target

PIECE = 512
"""Bytes that a stream sends at a time."""

INTERVAL = 0.5
"""Seconds between two pieces of a stream."""


class Trickle(RequestClient):
    """Sends a little again and again; what it has sent is compared when it has finished."""

    def __init__(self) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._sending = LoopingCall(self._send)
        self.sent = 0

    def connectionMade(self) -> None:
        """Begin to send."""
        super().connectionMade()
        self._sending.start(INTERVAL)

    def connectionLost(self, reason) -> None:
        """Send no more."""
        self._stop()
        super().connectionLost(reason)

    def finish(self) -> Deferred:
        """Send no more; fires when the other end has answered what it has got."""
        self._stop()
        self.transport.loseWriteConnection()
        return self.when_read_ended()

    @property
    def digest(self) -> str:
        """The SHA-256 of everything sent so far, in hexadecimal."""
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
    """So many streams to one target, made by ``connect``, which is given each client."""

    def __init__(self, case, target: Target, connect) -> None:
        self._case = case
        self._target = target
        self._connect = connect
        self._clients: list[Trickle] = []

    def __len__(self) -> int:
        """Return how many have been opened."""
        return len(self._clients)

    async def open_all(self, size: int) -> None:
        """Open the streams."""
        while len(self._clients) < size:
            client = Trickle()
            await self._connect(client)
            self._clients.append(client)

    async def assert_progress(self) -> None:
        """Require that every stream has carried more than when this was called."""
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
        """Finish all, and compare what each has sent with what has come."""
        await gatherResults([client.finish() for client in self._clients])
        for client in self._clients:
            self._case.assertGreater(client.sent, 0)
            self._case.assertEqual(client.answer.decode(), client.digest)
        total = sum(client.sent for client in self._clients)
        print(f"\n{len(self._clients)} streams carried {total} bytes, none was lost")
