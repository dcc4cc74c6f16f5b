"""The common parts of the hub's tests: a cloud, the hub of a node, and the node's clients."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError

from tests.e2e.hub.clients import JSON, NodeClient
from tests.e2e.hub.cloud import Cloud
from tests.e2e.hub.programs import Hub
from tests.e2e.support import EndToEndTestCase, which

JOIN_FLAGS = ("--bootstrap", "--join")
"""The prefixes of flags that define how a hub joins."""

NOTICED_SECONDS = 20.0
"""How long a hub on a busy machine may take to detect an outage or a recovery, in seconds."""


class HubTestCase(EndToEndTestCase):
    """A test case with a cloud and hubs, which it removes at the end."""

    async def start_cloud(self, servers: int = 1) -> Cloud:
        """Start a cloud with that number of API servers."""
        cloud = Cloud(reactor, self.directory, servers)
        self.addCleanup(lambda: Deferred.fromCoroutine(cloud.stop()))
        await cloud.start()
        return cloud

    def make_hub(self, cloud: Cloud, *extra: str, **options) -> Hub:
        """Create a hub that has joined, unless ``extra`` has flags for joining.

        It is stopped at the end of the test, and must exit normally, without errors in its log.
        """
        hub = Hub(reactor, self.directory, cloud.urls, extra=extra, **options)
        if not any(each.startswith(JOIN_FLAGS) for each in extra) and not os.path.exists(hub.state):
            cloud.join(hub.state, hub.node)
        self.addCleanup(lambda: Deferred.fromCoroutine(self._end_hub(hub)))
        return hub

    async def start_hub(self, cloud: Cloud, *extra: str, **options) -> Hub:
        """Start a hub, and wait until it is online: readiness does not include that."""
        hub = self.make_hub(cloud, *extra, **options)
        hub.start()
        await hub.ready()
        await self.wait_for_state(hub, online=True)
        return hub

    def name_with_a_silent_address(self, cloud: Cloud) -> tuple[str, tuple[str, ...]]:
        """Return the URL of the first server by a name, and the prefix of programs that resolve it.

        The first address of the name accepts connections and never responds.
        """
        port = cloud.servers[0].port
        silent = socket.create_server(("::1", port), family=socket.AF_INET6)
        self.addCleanup(silent.close)
        hosts = Path(self.directory, "hosts")
        hosts.write_text("::1 kubernetes\n127.0.0.1 kubernetes\n")
        mount = f'{which("mount")} --bind {hosts} /etc/hosts && exec "$@"'
        prefix = (which("unshare"), "--mount", "sh", "-c", mount, "sh")
        return f"https://kubernetes:{port}", prefix

    async def start(self, *extra: str, **options) -> tuple[Cloud, Hub]:
        """Start a cloud and the hub of a node."""
        cloud = await self.start_cloud()
        return cloud, await self.start_hub(cloud, *extra, **options)

    def client(
        self, hub: Hub, component: str = "kubelet", accept: str = JSON, token: str = ""
    ) -> NodeClient:
        """Create a client that uses the hub's loopback port."""
        return NodeClient(self, hub.port, component, accept, token)

    async def disconnect(self, cloud: Cloud, hub: Hub) -> None:
        """Make the cloud unreachable, and wait until the hub is offline."""
        await cloud.refuse_connections()
        await self.wait_for_state(hub, online=False)

    async def reconnect(self, cloud: Cloud, hub: Hub) -> None:
        """Make the cloud reachable, and wait until the hub is online."""
        cloud.restore()
        await self.wait_for_state(hub, online=True)

    async def wait_for_state(self, hub: Hub, online: bool) -> None:
        """Wait until the hub is online or offline."""

        async def is_noticed() -> bool:
            return await hub.online() is online

        what = "there" if online else "away"
        await self.eventually(is_noticed, f"the hub sees that the cloud is {what}", NOTICED_SECONDS)

    async def restart(self, hub: Hub, number: int = signal.SIGKILL) -> float:
        """End the hub with a signal and start it again; return the seconds until it is ready."""
        hub.signal(number)
        await hub.ended(20)
        hub.start()
        return await hub.ready()

    async def listens(self, hub: Hub) -> bool:
        """Return whether it responds, ready or not."""
        try:
            return (await hub.get("/v1/healthz"))[0] == 200
        except ConnectionRefusedError:
            return False

    async def settled(self, hub: Hub, seconds: float = 10.0) -> None:
        """Wait until everything is written to disk."""

        async def written() -> bool:
            return await hub.metric("yurthub_cache_waiting_bytes") == 0

        await self.eventually(written, "the cache is written", seconds)

    async def _end_hub(self, hub: Hub) -> None:
        status = await hub.stop(20) if hub.running else 0
        if status not in (0, -signal.SIGTERM):
            raise hub.failed(f"SIGTERM gave exit status {status}")
        forbidden_log_lines = hub.forbidden_log_lines()
        if forbidden_log_lines:
            raise hub.failed("complains:\n" + "\n".join(forbidden_log_lines))
