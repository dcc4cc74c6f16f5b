"""What the tests of the hub have in common: a cloud, the hub of a node, and the node's clients."""

from __future__ import annotations

import os
import signal

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError

from tests.e2e.hub.clients import JSON, NodeClient
from tests.e2e.hub.cloud import Cloud
from tests.e2e.hub.programs import Hub
from tests.e2e.support import EndToEndTestCase

JOINING = ("--bootstrap", "--join")
"""What the flags begin with that say how a hub joins."""

NOTICED_SECONDS = 20.0
"""How long a hub may take to see that all servers have left or come back, on a busy machine."""


class HubTestCase(EndToEndTestCase):
    """A test case with a cloud and hubs, which it takes away again."""

    async def start_cloud(self, servers: int = 1) -> Cloud:
        """Start a cloud that has so many API servers."""
        cloud = Cloud(reactor, self.directory, servers)
        self.addCleanup(lambda: Deferred.fromCoroutine(cloud.stop()))
        await cloud.start()
        return cloud

    def make_hub(self, cloud: Cloud, *extra: str, **options) -> Hub:
        """Prepare a hub, which has joined before unless ``extra`` says how it does.

        It ends with the test, in good order and without complaints.
        """
        hub = Hub(reactor, self.directory, cloud.urls, extra=extra, **options)
        if not any(each.startswith(JOINING) for each in extra) and not os.path.exists(hub.state):
            cloud.join(hub.state, hub.node)
        self.addCleanup(lambda: Deferred.fromCoroutine(self._end_hub(hub)))
        return hub

    async def start_hub(self, cloud: Cloud, *extra: str, **options) -> Hub:
        """Start a hub, and wait until it has seen the cloud: it is ready without that, too."""
        hub = self.make_hub(cloud, *extra, **options)
        hub.start()
        await hub.ready()
        await self.sees(hub, online=True)
        return hub

    async def start(self, *extra: str, **options) -> tuple[Cloud, Hub]:
        """Start a cloud and a hub of its node."""
        cloud = await self.start_cloud()
        return cloud, await self.start_hub(cloud, *extra, **options)

    def client(
        self, hub: Hub, component: str = "kubelet", accept: str = JSON, token: str = ""
    ) -> NodeClient:
        """Make a client that asks the hub on loopback."""
        return NodeClient(self, hub.port, component, accept, token)

    async def lose(self, cloud: Cloud, hub: Hub) -> None:
        """Have the cloud leave, and wait until the hub has seen it."""
        await cloud.leave()
        await self.sees(hub, online=False)

    async def regain(self, cloud: Cloud, hub: Hub) -> None:
        """Have the cloud come back, and wait until the hub has seen it."""
        cloud.return_()
        await self.sees(hub, online=True)

    async def sees(self, hub: Hub, online: bool) -> None:
        """Wait until the hub knows that the cloud is there, or not."""

        async def known() -> bool:
            return await hub.online() is online

        what = "there" if online else "away"
        await self.eventually(known, f"the hub sees that the cloud is {what}", NOTICED_SECONDS)

    async def restart(self, hub: Hub, number: int = signal.SIGKILL) -> float:
        """End the hub by a signal and start it again; the seconds until it is ready."""
        hub.signal(number)
        await hub.ended(20)
        hub.start()
        return await hub.ready()

    async def listens(self, hub: Hub) -> bool:
        """Whether it has begun to answer, ready or not."""
        try:
            return (await hub.get("/v1/healthz"))[0] == 200
        except ConnectionRefusedError:
            return False

    async def settled(self, hub: Hub, seconds: float = 10.0) -> None:
        """Wait until everything that has passed is on the disk."""

        async def written() -> bool:
            return await hub.metric("yurthub_cache_waiting_bytes") == 0

        await self.eventually(written, "the cache is written", seconds)

    async def _end_hub(self, hub: Hub) -> None:
        status = await hub.stop(20) if hub.running else 0
        if status not in (0, -signal.SIGTERM):
            raise hub.failed(f"SIGTERM gave exit status {status}")
        complaints = hub.complaints()
        if complaints:
            raise hub.failed("complains:\n" + "\n".join(complaints))
