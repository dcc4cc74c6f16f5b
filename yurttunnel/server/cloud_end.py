"""The cloud end of the tunnel as a service: who can connect where, once there is trust."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from cryptography import x509
from twisted.internet.interfaces import (
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
)
from twisted.logger import Logger

from yurttunnel import __version__
from yurttunnel.http.authority import join_authority
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.pki.kubelets import KubeletContexts
from yurttunnel.server.agents import REFUSAL_METRICS, AgentListener, AgentListenerSettings
from yurttunnel.server.endpoints import Listening
from yurttunnel.server.entries import Entry, shown_address
from yurttunnel.server.frontends.admission import Permissions
from yurttunnel.server.frontends.calls import Dialer, DialingFactory, IGate
from yurttunnel.server.frontends.connect import ConnectFactory
from yurttunnel.server.frontends.forward import Forward, ForwardFactory
from yurttunnel.server.frontends.forwards import Forwards
from yurttunnel.server.frontends.kubelet.listeners import Interception
from yurttunnel.server.frontends.kubelet.metrics import METRICS as INTERCEPTION_METRICS
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.options import Settings
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.service import Listener, ServerService, SessionHolder
from yurttunnel.server.steered import other_addresses
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.shares import Kind
from yurttunnel.tunnel.sockets import tune_session_socket
from yurttunnel.wire.hello import Limits

if TYPE_CHECKING:
    from yurttunnel.server.frontends.passthrough.listener import PassthroughFactory

log = Logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whom the server believes, and as whom it shows itself; each for one kind of peer.

    ``agents`` are the contexts of the agents' port, ``secure`` those of --secure-port, and
    ``connect`` those of endpoints of --connect-endpoint that name no files. ``identify`` reads
    who a node is from its certificate, and ``is_revoked`` says whether it still is.
    """

    agents: IOpenSSLServerConnectionCreator
    secure: IOpenSSLServerConnectionCreator
    connect: IOpenSSLServerConnectionCreator
    kubelets: KubeletContexts
    identify: Callable[[x509.Certificate], NodeIdentity]
    is_revoked: Callable[[NodeIdentity], bool]


def agent_listener(
    process: ServerProcess,
    trust: Trust,
    others: Mapping[bytes, Callable[[], IProtocol]],
    replicas: Callable[[], int | None] = lambda: None,
) -> AgentListener:
    """Make what is behind the agents' port; ``others`` are protocols that share it, by ALPN.

    ``replicas()`` says how many servers there are, for agents; ``None`` where the command lines
    of those say it.
    """
    agents = AgentListener(
        process.context,
        process.registry,
        trust.is_revoked,
        _agent_settings(process.live.now),
        others=others,
        identify=trust.identify,
        replicas=replicas,
    )
    process.sessions = agents.sessions
    agents.on_ended.append(process.lost_nodes.ended)
    agents.on_interrupted.append(process.history.interrupted)
    process.metrics.add(REFUSAL_METRICS, lambda: agents.refusals)
    return agents


def _agent_settings(settings: Settings) -> AgentListenerSettings:
    return AgentListenerSettings(
        limits=Limits(resume_window=round(settings.resume_window * 1000)),
        return_grace=settings.return_grace,
        name="server",
        software=__version__,
    )


def cloud_end(
    reactor: IReactor,
    settings: Settings,
    process: ServerProcess,
    trust: Trust,
    agents: AgentListener,
    middlewares: Sequence[IMiddleware],
    others: Sequence[SessionHolder] = (),
    passthrough: tuple[int, PassthroughFactory] | None = None,
) -> ServerService:
    """Compose what listens, but for the meta port; ``others`` have sessions besides ``agents``.

    ``passthrough`` is --passthrough-port with what takes connections there, if there is one.
    """
    live = process.live
    gates = tuple(each for each in middlewares if IGate.providedBy(each))
    permissions = Permissions(live.now.connect_permissions)

    def guard(caller: Dialer) -> None:
        caller.audit = process.audit
        caller.failures = process.failures
        caller.gates = (*caller.gates, *gates)

    callers: dict[str, ConnectFactory | DialingFactory] = {
        flag: ConnectFactory(reactor, process.registry) for flag, _ in settings.connect_endpoints
    }
    for caller in callers.values():
        caller.gates = (permissions,)
    if passthrough is not None:
        callers["--passthrough-port"] = passthrough[1]
    for flag, caller in callers.items():
        caller.flag = flag
        guard(caller)
    forwards = process.forwards = _forwards(reactor, process.registry, live.now, guard)
    interception = Interception(
        reactor,
        process.registry,
        trust.kubelets,
        middlewares,
        live.now.response_timeout or None,
        audit=process.audit,
        counters=process.requests,
        failures=process.failures,
    )
    process.pooled_streams = interception.pooled_streams
    agents.on_sessions_drain.append(interception.sessions_drain)
    process.metrics.add(INTERCEPTION_METRICS, interception.stats)
    secured = tls.server_side(reactor, trust.secure, interception.secure)
    passing: list[Listener] = []
    if passthrough is not None:
        port, factory = passthrough
        factory.unnamed = secured
        passing = _on_both_families(
            reactor, settings, "--passthrough-port", settings.bind_address, port, factory
        )
    server = ServerService(
        reactor,
        [
            *_listeners(reactor, settings, trust, agents, callers),
            Listener("--forward", forwards.listen),
            *_interception_listeners(reactor, settings, secured, interception.insecure),
            *passing,
        ],
        [agents, *others],
        [interception, *callers.values(), forwards],
        live.now.drain_timeout,
    )
    process.entries = lambda: [*_forwarded(forwards), *_listening(server)]

    def use(changed: Settings) -> None:
        permissions.permissions = changed.connect_permissions
        server.drain_timeout = changed.drain_timeout
        agents.settings = _agent_settings(changed)
        interception.use_response_timeout(changed.response_timeout or None)

    live.follow(lambda changed: forwards.configure(changed.forwards))
    live.follow(use)
    return server


def _forwarded(forwards: Forwards) -> Iterator[Entry]:
    for each in forwards.states():
        forward = each.forward
        yield Entry(forward.flag, join_authority(*forward.listen), forward.target, Kind.FORWARD)


def _listening(service: ServerService) -> Iterator[Entry]:
    for name, address in service.listening():
        if name.startswith("--connect-endpoint"):
            leads, kind = "whatever is asked for by CONNECT", Kind.CONNECT
        elif name.startswith("--passthrough-port"):
            leads, kind = "the node that TLS or the kernel names", Kind.PASSTHROUGH
        elif name.startswith("--tunnel-agent"):
            leads, kind = "this server, for agents", None
        else:
            leads, kind = "the kubelets of the nodes", None
        yield Entry(name, shown_address(address), leads, kind)


def _forwards(
    reactor: IReactor,
    registry: SessionRegistry,
    settings: Settings,
    guard: Callable[[Dialer], None],
) -> Forwards:
    """Make what opens forwards; ``guard`` gives each what its callers have to pass."""

    def make(forward: Forward) -> ForwardFactory:
        factory = ForwardFactory(registry, forward)
        guard(factory)
        return factory

    return Forwards(make, partial(listen_tcp, reactor), settings.forwards)


def _listeners(
    reactor: IReactor,
    settings: Settings,
    trust: Trust,
    agents: AgentListener,
    callers: Mapping[str, ConnectFactory | DialingFactory],
) -> list[Listener]:
    """Return what to listen on, each with the flag that an error names."""
    tcp = partial(listen_tcp, reactor)
    secured = tls.server_side(reactor, trust.agents, agents)
    flag = "--tunnel-agent-connect-port"
    listen = partial(
        tcp,
        flag,
        settings.bind_address,
        settings.agent_port,
        secured,
        tune=tune_session_socket,
    )
    listeners = [Listener(flag, listen)]
    for flag, endpoint in settings.connect_endpoints:
        restricted = bool(settings.connect_permissions)
        wanted = Listening(reactor, flag, callers[flag], trust.connect, restricted)
        listeners.append(Listener(flag, partial(endpoint.listen, wanted)))
    return listeners


def _interception_listeners(
    reactor: IReactor, settings: Settings, secured: IProtocolFactory, insecure: IProtocolFactory
) -> list[Listener]:
    """Return where callers come to that mean kubelets.

    Warns when others than this machine can come without being asked who they are.
    """
    if not ip_address(settings.insecure_address).is_loopback:
        log.warn(
            "--insecure-port: everybody who can connect to {address} port {port} can reach every"
            " node; --secure-port authenticates callers",
            address=settings.insecure_address,
            port=settings.insecure_port,
        )
    bind, loopback = settings.bind_address, settings.insecure_address
    return [
        *_on_both_families(reactor, settings, "--secure-port", bind, settings.secure_port, secured),
        *_on_both_families(
            reactor, settings, "--insecure-port", loopback, settings.insecure_port, insecure
        ),
    ]


def _on_both_families(
    reactor: IReactor,
    settings: Settings,
    flag: str,
    address: str,
    port: int,
    factory: IProtocolFactory,
) -> list[Listener]:
    """Listen on an address, and where connections of the other family are led to."""
    tcp = partial(listen_tcp, reactor, flag)
    return [
        Listener(flag, partial(tcp, address, port, factory)),
        *(
            Listener(f"{flag} on {other}", partial(tcp, other, port, factory))
            for other in other_addresses(settings, address)
        ),
    ]
