"""The cloud end of the tunnel as a service: its listeners, once the certificates are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocol, IProtocolFactory
from twisted.logger import Logger

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.server.agents import REFUSAL_METRICS, AgentListener, AgentListenerSettings
from yurttunnel.server.endpoints import ListenOptions
from yurttunnel.server.frontends.admission import Permissions
from yurttunnel.server.frontends.calls import Dialer, DialingFactory, IGate
from yurttunnel.server.frontends.connect import ConnectFactory
from yurttunnel.server.frontends.forward import Forward, ForwardFactory
from yurttunnel.server.frontends.forwards import Forwards
from yurttunnel.server.frontends.kubelet.listeners import Interception
from yurttunnel.server.frontends.kubelet.metrics import METRICS as INTERCEPTION_METRICS
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.listener_section import ListenerInfo, format_address
from yurttunnel.server.options import Settings
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.redirect_targets import other_family_addresses
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.service import Listener, ServerService, SessionOwner
from yurttunnel.server.trust import ServerTrust
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.shares import Kind
from yurttunnel.tunnel.sockets import tune_session_socket
from yurttunnel.wire.hello import Limits

if TYPE_CHECKING:
    from yurttunnel.server.frontends.passthrough.listener import PassthroughFactory

log = Logger()


def agent_listener(
    process: ServerProcess,
    trust: ServerTrust,
    is_revoked: Callable[[NodeIdentity], bool],
    others: Mapping[bytes, Callable[[], IProtocol]],
    replicas: Callable[[], int | None] = lambda: None,
) -> AgentListener:
    """Return the factory of the agents' port; ``others`` are the protocols that share it, by ALPN.

    ``is_revoked`` returns whether the identity of a node was revoked. ``replicas()`` returns the
    number of servers, for agents; ``None`` if agents know it from their command lines.
    """
    agents = AgentListener(
        process.context,
        process.registry,
        is_revoked,
        _agent_settings(process.live.current),
        others=others,
        identify=trust.identify,
        replicas=replicas,
    )
    process.sessions = agents.sessions
    agents.on_ended.append(process.lost_nodes.session_ended)
    agents.on_interrupted.append(process.history.interrupted)
    process.metrics.add(REFUSAL_METRICS, lambda: agents.refusals)
    return agents


def _agent_settings(settings: Settings) -> AgentListenerSettings:
    return AgentListenerSettings(
        limits=Limits(resume_window=round(settings.resume_window * 1000)),
        return_grace=settings.return_grace,
    )


def server_service(
    reactor: IReactor,
    settings: Settings,
    process: ServerProcess,
    trust: ServerTrust,
    agents: AgentListener,
    middlewares: Sequence[IMiddleware],
    others: Sequence[SessionOwner] = (),
    passthrough: tuple[int, PassthroughFactory] | None = None,
) -> ServerService:
    """Compose the listeners, except the meta port; ``others`` hold sessions in addition to
    ``agents``.

    ``passthrough`` is --passthrough-port with its factory, if there is one.
    """
    live = process.live
    gates = tuple(each for each in middlewares if IGate.providedBy(each))
    permissions = Permissions(live.current.connect_permissions)

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
    forwards = process.forwards = _forwards(reactor, process.registry, live.current, guard)
    interception = Interception(
        reactor,
        process.registry,
        trust.kubelets,
        middlewares,
        live.current.response_timeout or None,
        audit=process.audit,
        counters=process.requests,
        failures=process.failures,
    )
    process.pooled_streams = interception.pooled_streams
    agents.on_sessions_draining.append(interception.sessions_draining)
    process.metrics.add(INTERCEPTION_METRICS, interception.stats)
    secured = tls.server_side(reactor, trust.interception, interception.secure)
    passing: list[Listener] = []
    if passthrough is not None:
        port, factory = passthrough
        factory.no_sni_factory = secured
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
        live.current.drain_timeout,
    )
    process.listeners = lambda: [*_forward_infos(forwards), *_listener_infos(server)]

    def apply(changed: Settings) -> None:
        permissions.permissions = changed.connect_permissions
        server.drain_timeout = changed.drain_timeout
        agents.settings = _agent_settings(changed)
        interception.use_response_timeout(changed.response_timeout or None)

    live.follow(lambda changed: forwards.configure(changed.forwards))
    live.follow(apply)
    return server


def _forward_infos(forwards: Forwards) -> Iterator[ListenerInfo]:
    for each in forwards.states():
        forward = each.forward
        yield ListenerInfo(
            forward.flag, join_authority(*forward.listen), forward.target, Kind.FORWARD
        )


def _listener_infos(service: ServerService) -> Iterator[ListenerInfo]:
    for name, address in service.listening():
        if name.startswith("--connect-endpoint"):
            target, kind = "the target of the CONNECT request", Kind.CONNECT
        elif name.startswith("--passthrough-port"):
            target, kind = "the node that TLS or the kernel names", Kind.PASSTHROUGH
        elif name.startswith("--tunnel-agent"):
            target, kind = "this server, for agents", None
        else:
            target, kind = "the kubelets of the nodes", None
        yield ListenerInfo(name, format_address(address), target, kind)


def _forwards(
    reactor: IReactor,
    registry: SessionRegistry,
    settings: Settings,
    guard: Callable[[Dialer], None],
) -> Forwards:
    """Return the forwards; ``guard`` sets the gates and the audit log of each."""

    def make(forward: Forward) -> ForwardFactory:
        factory = ForwardFactory(registry, forward)
        guard(factory)
        return factory

    return Forwards(make, partial(listen_tcp, reactor), settings.forwards)


def _listeners(
    reactor: IReactor,
    settings: Settings,
    trust: ServerTrust,
    agents: AgentListener,
    callers: Mapping[str, ConnectFactory | DialingFactory],
) -> list[Listener]:
    """Return the listeners, each with the flag for error messages."""
    tcp = partial(listen_tcp, reactor)
    secured = tls.server_side(reactor, trust.contexts, agents)
    flag = "--tunnel-agent-connect-port"
    listen = partial(
        tcp, flag, settings.bind_address, settings.agent_port, secured, tune=tune_session_socket
    )
    listeners = [Listener(flag, listen)]
    for flag, endpoint in settings.connect_endpoints:
        restricted = bool(settings.connect_permissions)
        listen_options = ListenOptions(reactor, flag, callers[flag], trust.callers, restricted)
        listeners.append(Listener(flag, partial(endpoint.listen, listen_options)))
    return listeners


def _interception_listeners(
    reactor: IReactor, settings: Settings, secured: IProtocolFactory, insecure: IProtocolFactory
) -> list[Listener]:
    """Return the listeners for requests to kubelets.

    Warns if other machines can connect without authentication.
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
    """Listen on an address, and where connections of the other family are redirected to."""
    tcp = partial(listen_tcp, reactor, flag)
    return [
        Listener(flag, partial(tcp, address, port, factory)),
        *(
            Listener(f"{flag} on {other}", partial(tcp, other, port, factory))
            for other in other_family_addresses(settings, address)
        ),
    ]
