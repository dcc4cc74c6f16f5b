"""Many simultaneous callers, as after a restart or from a pool that fills, are all served."""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter

from twisted.internet.threads import deferToThread

from tests.e2e.clients import Echo
from tests.e2e.support import EndToEndTestCase

CALLERS = 500
"""That connect within some milliseconds."""

BURSTS = 4

SECONDS = 30.0
"""The maximum duration of a burst in seconds; each connection has the 15 s of --dial-timeout."""


def burst(port: int, callers: int, text: bytes = b"x") -> Counter[str]:
    """Connect all at once, send ``text`` on each and wait for its echo; count the results."""
    waiting = selectors.DefaultSelector()
    for _ in range(callers):
        caller = socket.socket()
        caller.setblocking(False)
        caller.connect_ex(("127.0.0.1", port))
        waiting.register(caller, selectors.EVENT_WRITE)
    ends: Counter[str] = Counter()
    deadline = time.monotonic() + SECONDS
    while waiting.get_map() and time.monotonic() < deadline:
        for key, events in waiting.select(1.0):
            caller = key.fileobj
            try:
                if events & selectors.EVENT_WRITE:
                    caller.send(text)
                    waiting.modify(caller, selectors.EVENT_READ)
                    continue
                ends["served" if caller.recv(len(text)) == text else "closed"] += 1
            except OSError as error:
                ends[error.strerror or str(error)] += 1
            waiting.unregister(caller)
            caller.close()
    for key in list(waiting.get_map().values()):
        ends["not served in time"] += 1
        key.fileobj.close()
    waiting.close()
    return ends


class BurstTests(EndToEndTestCase):
    """One tunnel, and a target with a short accept queue, as many servers have."""

    async def test_everybody_is_served(self) -> None:
        """Some connections are made concurrently, the others later; repeatedly."""
        target = self.listen(Echo)
        tunnel = await self.start_tunnel(forwards=(target.port,))
        for number in range(BURSTS):
            ends = await deferToThread(burst, tunnel.forward_ports[0], CALLERS)
            self.assertEqual({"served": CALLERS}, dict(ends), f"burst {number}")
            # Streams whose end is not yet known would count for the limit of the next burst.
            await self.eventually(tunnel.has_no_stream, "all streams have ended")
