"""The edge node of the quickstart: a node that reaches the API only through a hub."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import deferLater
from zope.interface import implementer

from yurtlab.api.store import Store
from yurtlab.node.mirror import Mirror
from yurtlab.node.node import Node, NodeSettings
from yurttunnel.http.interfaces import IExchange, IRequestHandler
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import without_credentials
from yurttunnel.ops.services import CloseOnStop, StoppedInReverse
from yurttunnel.tunnel.reactor import IReactor

COMPONENT = "kubelet"
"""The user agent of the node's requests to the hub."""

RESTART_SECONDS = 20.0
"""The timeout for a pod to run again after a reboot; usually it takes less than 1 s."""

_PAUSE = 0.05


class _Run(StoppedInReverse):
    """The node between two boots of its machine: it keeps no state from the run before."""

    def __init__(self, reactor: IReactor, hub: str, settings: NodeSettings) -> None:
        client = KubeClient(reactor, without_credentials(hub), program=COMPONENT)
        store = Store(reactor)
        self.node = Node(reactor, store, settings)
        mirror = Mirror(reactor, client, store, settings.name)
        super().__init__(CloseOnStop(client.close), mirror, self.node)


@implementer(IRequestHandler)
class EdgeNode(Service):
    """The node of ``settings`` behind the hub at the URL ``hub``; a handler of its kubelet's port.

    It can be rebooted, like a machine after a short power loss.
    """

    def __init__(self, reactor: IReactor, hub: str, settings: NodeSettings) -> None:
        self._reactor = reactor
        self._hub = hub
        self._settings = settings
        self._run = self._new_run()

    def startService(self) -> None:
        super().startService()
        self._run.startService()

    def stopService(self) -> Deferred[None]:
        """Stop it; fires when none of its processes is left."""
        super().stopService()
        return maybeDeferred(self._run.stopService)

    def request_received(self, exchange: IExchange) -> None:
        self._run.node.handler.request_received(exchange)

    async def reboot(self) -> None:
        """Stop everything, and start again with only the hub's data; fires when it has started.

        A node that is stopped meanwhile is not started: nothing would stop it again.
        """
        await self._run.stopService()
        if self.running:
            self._run = self._new_run()
            self._run.startService()

    async def runs(self, namespace: str, name: str) -> None:
        """Wait until a pod runs; raise ``TimeoutError`` after :data:`RESTART_SECONDS`."""
        deadline = self._reactor.seconds() + RESTART_SECONDS
        while not self._run.node.runs(namespace, name):
            if self._reactor.seconds() > deadline:
                raise TimeoutError(
                    f"pod {namespace}/{name} did not run within {RESTART_SECONDS:g} s of the"
                    " node's start"
                )
            await deferLater(self._reactor, _PAUSE)

    def _new_run(self) -> _Run:
        return _Run(self._reactor, self._hub, self._settings)
