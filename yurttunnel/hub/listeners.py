"""The hub's listeners: loopback for the node, and the interface for pods with tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IListeningPort, IProtocolFactory
from twisted.logger import Logger

from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import IRequestHandler
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.hub.identity.identity import HubIdentity
from yurttunnel.hub.settings import ListenerSettings
from yurttunnel.ops.listen import CannotListen, listen_tcp
from yurttunnel.ops.services import PortService, RetryingPort
from yurttunnel.ops.timeouts import all_fired_within
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.reactor import IReactor

if TYPE_CHECKING:
    from yurttunnel.hub.network.interface import NodeInterface

SETTINGS = ServerSettings(limits=HeadLimits(max_bytes=512 * 1024, max_fields=200))
"""``kubectl exec`` sends the words of the command in the query. One word can have 128 KiB
(``MAX_ARG_STRLEN`` of execve(2)), and percent-encoding triples that."""

DRAIN_SECONDS = 2.0
"""How long shutdown waits for responses in progress."""

INTERVAL = 15.0
"""The interval of attempts to listen on an address that does not exist yet, in seconds."""


class HubPort(RetryingPort):
    """Listens once ``may_listen()`` is true and the address exists."""

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        what: str,
        may_listen: Callable[[], bool],
        listen: Callable[[], IListeningPort],
    ) -> None:
        super().__init__(reactor, INTERVAL, f"listening on {what}", listen)
        self._may_listen = may_listen
        self.on_tried: list[Callable[[], object]] = []
        """Callbacks for each attempt to listen, whether successful or not."""

    def report(self, error: CannotListen) -> None:
        self._log.warn("{error}; retrying", error=error)

    async def try_listening(self) -> None:
        if not self.listens and self._may_listen():
            await super().try_listening()
            for callback in self.on_tried:
                callback()


class HubListeners(MultiService):
    """All listeners of the hub.

    ``local`` handles requests of clients on the node, ``foreign`` all others. ``reached`` is called
    with whether pods can connect to the TLS port, once that is known. The loopback listeners are
    open when the service has started, or the process exits with a message.
    """

    def __init__(
        self,
        reactor: IReactor,
        settings: ListenerSettings,
        local: IRequestHandler,
        foreign: IRequestHandler,
        identity: HubIdentity,
        interface: NodeInterface | None,
        reached: Callable[[bool], object],
    ) -> None:
        super().__init__()
        self._reactor = reactor
        own, pods = HTTPFactory(reactor, local, SETTINGS), HTTPFactory(reactor, foreign, SETTINGS)
        self._factories = (own, pods)
        listen = partial(listen_tcp, reactor)
        host = settings.proxy_host
        PortService(
            partial(listen, "--proxy-port", host, settings.proxy_port, own)
        ).setServiceParent(self)
        if settings.interface is not None:
            host = str(settings.interface.address)
        self._retrying: dict[str, HubPort] = {}
        if interface is not None:
            self._add(
                f"{host}, port {settings.proxy_port}",
                lambda: interface.problem() is None,
                partial(listen, "--dummy-if-ip", host, settings.proxy_port, pods),
            )
        secured = self._add(
            f"{host}, port {settings.secure_port}",
            lambda: (
                identity.serving is not None and (interface is None or interface.problem() is None)
            ),
            lambda: listen(
                "--proxy-secure-port", host, settings.secure_port, self._secured(identity, pods)
            ),
        )

        def report_reachability() -> None:
            # The port stays open while a damaged interface is repaired: if pods were redirected to
            # the API and back, their containers would be restarted.
            reached(secured.listens)

        secured.on_tried.append(report_reachability)
        identity.on_serving.append(self._try)
        if interface is not None:
            interface.on_ready.append(self._try)
            interface.on_refused.append(report_reachability)

    def problem(self) -> str | None:
        """Return the addresses on which pods cannot connect to the hub yet."""
        closed = [what for what, each in self._retrying.items() if not each.listens]
        return f"the hub does not listen yet on {'; '.join(closed)}" if closed else None

    def drain(self, end_watches: Callable[[], object]) -> Deferred[None]:
        """Close the ports, and wait a moment for responses to end, before their producers stop.

        Watches do not end by themselves: ``end_watches()`` is called once clients cannot restart
        them here.
        """
        return Deferred.fromCoroutine(self._drain(super().stopService(), end_watches))

    async def _drain(self, closed: Deferred[object], end_watches: Callable[[], object]) -> None:
        await closed
        drained = DeferredList([factory.drain() for factory in self._factories])
        end_watches()
        await all_fired_within(self._reactor, DRAIN_SECONDS, [drained])

    def stopService(self) -> Deferred[None]:
        """Close the ports, and abort the remaining connections."""
        return Deferred.fromCoroutine(self._stop(super().stopService()))

    async def _stop(self, closed: Deferred[object]) -> None:
        await closed
        for factory in self._factories:
            factory.close()

    def _add(
        self, what: str, may_listen: Callable[[], bool], listen: Callable[[], IListeningPort]
    ) -> HubPort:
        port = HubPort(self._reactor, what, may_listen, listen)
        port.setServiceParent(self)
        self._retrying[what] = port
        return port

    def _secured(self, identity: HubIdentity, factory: HTTPFactory) -> IProtocolFactory:
        assert identity.serving is not None  # may_listen() has checked this.
        return tls.server_side(self._reactor, identity.serving, factory)

    def _try(self) -> None:
        for port in self._retrying.values():
            port.trigger(settle=0.0)
