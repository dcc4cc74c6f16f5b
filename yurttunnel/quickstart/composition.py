"""The composition of the quickstart's parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.service import IService, MultiService
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger, LogLevel

from yurtlab.api.service import KubernetesAPI
from yurtlab.api.store import Store
from yurtlab.node.node import LEASE_SECONDS, NodeSettings
from yurttunnel.agent import command as agent
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.agent.options import Settings as AgentSettings
from yurttunnel.agent.policy import NO_DEFAULT
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.interfaces import IRequestHandler
from yurttunnel.http.server import HTTPFactory, ServerSettings
from yurttunnel.hub import process as hub
from yurttunnel.hub.options import Options as HubOptions
from yurttunnel.hub.settings import Settings as HubSettings
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.log_levels import LogLevelFilter, log_level_filter
from yurttunnel.ops.services import CloseOnStop, PortService, StoppedInReverse
from yurttunnel.proxy import process as proxy
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.proxy.settings import Settings as ProxySettings
from yurttunnel.quickstart import check_requests
from yurttunnel.quickstart.edge import EdgeNode
from yurttunnel.quickstart.options import ADDRESS, Settings
from yurttunnel.quickstart.service import CheckRun, LockedState, RestartableService, StartupMonitor
from yurttunnel.quickstart.trust import NodeAndMasters, QuickstartTrust
from yurttunnel.quickstart.tunneled_nodes import TunneledNodes
from yurttunnel.server import command as server
from yurttunnel.server.options import Options as ServerOptions
from yurttunnel.server.options import Settings as TunnelServerSettings
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.reactor import IReactor

SERVER_STATE = "server"
HUB_STATE = "hub"
"""The state directories of server and hub, below that of the quickstart."""

HTTP_SETTINGS = ServerSettings(limits=HeadLimits(max_bytes=512 * 1024))
"""The same limit as the tunnel's: the target of an exec request contains the command."""

DRAIN_TIMEOUT = "1s"
"""Short: all parts stop together, so streams cannot continue elsewhere."""


def build(reactor: IReactor, settings: Settings) -> IService:
    """Compose the parts: server, agent, hub and proxy unchanged, a node and an API."""
    ports, node_name = settings.ports, settings.node_name
    own_state = LockedState(settings.state_dir)
    state = own_state.directory.path
    tunnel_server = server.build(reactor, _server_settings(settings, state))
    trust = QuickstartTrust(reactor, state / SERVER_STATE, node_name)
    kubeconfig = state / "kubeconfig"
    own_state.directory.write(kubeconfig.name, trust.kubeconfig(ports.api))
    trust.write_for_hub(state / HUB_STATE, node_name)
    store = Store(reactor)
    nodes = TunneledNodes(reactor, trust.api_to_tunnel, lambda: [(ADDRESS, ports.secure)])
    api = KubernetesAPI(reactor, store, nodes.connections, authorizer=NodeAndMasters(node_name))
    hub_url = f"http://{ADDRESS}:{ports.hub}"
    node_settings = NodeSettings(node_name, ADDRESS, ports.kubelet, state / "node")
    node = EdgeNode(reactor, hub_url, node_settings)

    def served(port: int, contexts: Any, handler: IRequestHandler) -> PortService:
        factory = HTTPFactory(reactor, handler, HTTP_SETTINGS)
        secured = tls.server_side(reactor, contexts, factory)
        listen = partial(listen_tcp, reactor, "--port", ADDRESS, port, secured)
        return PortService(listen, factory.close)

    api_port = RestartableService(partial(served, ports.api, trust.api, api))

    outage = Outage(reactor, api_port, log_level_filter)

    async def reboot_node(namespace: str, pod: str) -> None:
        await node.reboot()
        await node.runs(namespace, pod)

    check = CheckRun(
        (
            str(kubeconfig),
            hub_url,
            f"{ADDRESS}:{ports.proxy_meta}",
            "addresses" if settings.firewall else "ports",
        ),
        {
            check_requests.STOP_API: outage.begin,
            check_requests.START_API: outage.end,
            check_requests.REBOOT_NODE: reboot_node,
        },
    )
    monitor = StartupMonitor(
        reactor,
        partial(nodes.problem, node_name, ports.kubelet),
        _introduction(settings, kubeconfig),
        check if settings.check else None,
    )
    tunnel = MultiService()
    tunnel_server.setServiceParent(tunnel)
    agent.build(reactor, _agent_settings(settings, state)).setServiceParent(tunnel)
    # The first parts serve the others until these have stopped.
    return StoppedInReverse(
        own_state,
        CloseOnStop(nodes.close),
        CloseOnStop(api.stop),
        api_port,
        hub.build(reactor, _hub_settings(settings, state)),
        proxy.build(reactor, _proxy_settings(settings, state, hub_url)),
        served(ports.kubelet, trust.node, node),
        node,
        tunnel,
        monitor,
    )


def _server_settings(settings: Settings, state: Path) -> TunnelServerSettings:
    """Return the settings that the server would have from its command line."""
    ports = settings.ports
    parsed = ServerOptions({}).settings_of(
        "--standalone",
        *("--state-dir", str(state / SERVER_STATE)),
        *("--bind-address", ADDRESS),
        *("--tunnel-agent-connect-port", str(ports.agents)),
        *("--secure-port", str(ports.secure)),
        *("--insecure-port", str(ports.insecure)),
        *("--meta-port", str(ports.server_meta)),
        *("--drain-timeout", DRAIN_TIMEOUT),
    )
    # The server's own hints do not apply; the quickstart prints its own.
    return replace(parsed, prints_startup_message=False)


def _hub_settings(settings: Settings, state: Path) -> HubSettings:
    """Return the settings that the hub would have from its command line."""
    ports = settings.ports
    return HubOptions({}).settings_of(
        *("--node-name", settings.node_name),
        *("--server-addr", f"https://{ADDRESS}:{ports.api}"),
        *("--root-dir", str(state / HUB_STATE)),
        *("--disk-cache-path", str(state / HUB_STATE / "cache")),
        *("--proxy-port", str(ports.hub)),
        *("--proxy-secure-port", str(ports.hub_secure)),
        *("--serve-port", str(ports.hub_meta)),
        # Pods are processes of this machine: they reach the hub on loopback.
        "--enable-dummy-if=false",
        # The node renews its Lease less often than a kubelet does.
        *("--kubelet-health-grace-period", f"{LEASE_SECONDS}s"),
        # A user who watches should not wait longer.
        *("--heartbeat-interval-seconds", "1s"),
        *("--heartbeat-timeout-seconds", "1s"),
    )


def _proxy_settings(settings: Settings, state: Path, hub_url: str) -> ProxySettings:
    """Return the settings that the service proxy would have from its command line.

    The firewall of this machine stays unchanged unless rules are requested: Services are called
    on the proxy's ports.
    """
    parsed = ProxyOptions({}).settings_of(
        *("--state-dir", str(state / "proxy")),
        *("--hostname-override", settings.node_name),
        *("--master", hub_url),
        *("--mode", "user"),
        *("--proxy-backend", "auto" if settings.firewall else "none"),
        "--remove-rules-at-exit",
        *("--metrics-bind-address", f"{ADDRESS}:{settings.ports.proxy_meta}"),
        *("--healthz-bind-address", ""),
        *("--drain-timeout", DRAIN_TIMEOUT),
    )
    # Also with rules, which then apply to this machine alone.
    return replace(parsed, bind_address=ADDRESS)


def _agent_settings(settings: Settings, state: Path) -> AgentSettings:
    """Return the settings that the agent would have from its command line."""
    ports = settings.ports
    return AgentOptions({}).settings_of(
        "--standalone",
        *("--state-dir", str(state / "agent")),
        *("--node-name", settings.node_name),
        *("--node-ip", ADDRESS),
        *("--tunnelserver-addr", settings.server_address or f"{ADDRESS}:{ports.agents}"),
        *("--join-token-file", str(state / SERVER_STATE / "join-token")),
        *("--meta-port", str(ports.agent_meta)),
        # Other programs on loopback must not be reachable through the tunnel.
        *("--allow-destination", NO_DEFAULT),
        *("--allow-destination", f"{ADDRESS}:{ports.kubelet}"),
        *("--drain-timeout", DRAIN_TIMEOUT),
    )


def _introduction(settings: Settings, kubeconfig: Path) -> str:
    """Return the introduction: what runs, and how to use it."""
    ports, node = settings.ports, settings.node_name
    if settings.check:
        return f"node {node} is reachable through the tunnel; running all checks:"
    by_address = (
        " On this\nmachine, connections to their cluster IPs are redirected there."
        if settings.firewall
        else ""
    )
    return f"""
A Kubernetes API on https://{ADDRESS}:{ports.api}, which reaches its node {node} only through the
tunnel. In another terminal:

  export KUBECONFIG={kubeconfig}
  kubectl get nodes
  kubectl run web --image=none -- python3 -u -m http.server 8080 --bind {ADDRESS}
  kubectl port-forward web 8000:8080
  kubectl logs -f web
  kubectl exec -it web -- sh

The node has no images: a container is a process of this machine, run as you. The server lists its
agents on http://{ADDRESS}:{ports.server_meta}/agents. The ports of Services that have a cluster IP
and EndpointSlices are on http://{ADDRESS}:{ports.proxy_meta}/.{by_address}
Ctrl-C stops everything.
"""


SETTLE_SECONDS = 3.0
"""The seconds after the return of the API in which its absence may still be logged: requests that
the hub holds meanwhile end within 2 s."""

_log = Logger()


class Outage:
    """Stops ``api`` and restarts it; until that has settled only errors are logged."""

    def __init__(
        self, clock: IReactorTime, api: RestartableService, levels: LogLevelFilter
    ) -> None:
        self._clock = clock
        self._api = api
        self._levels = levels

    async def begin(self) -> None:
        """Stop the API; log only errors, as all its clients would log its absence."""
        _log.info("the API is stopped for some seconds, as the check requests")
        self._levels.set_temporarily(LogLevel.error, requests=False)
        await self._api.stop_part()

    async def end(self) -> None:
        """Start the API again, and restore the log level a little later."""
        await self._api.start_part()
        self._clock.callLater(SETTLE_SECONDS, self._levels.restore)
