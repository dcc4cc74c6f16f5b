"""Ports by which load balancers learn whether a Service has endpoints on this node.

A Service with ``externalTrafficPolicy: Local`` has one, its ``healthCheckNodePort``; the response
is kube-proxy's (``pkg/proxy/healthcheck/service_health.go`` of Kubernetes).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial

from twisted.internet.defer import gatherResults, maybeDeferred
from twisted.internet.interfaces import IListeningPort

from yurttunnel.ops.http_site import LimitedSite, PageRequest, PageResponse
from yurttunnel.ops.listen import CannotListen, listen_tcp
from yurttunnel.proxy.port_claims import MAX_ADDRESSES
from yurttunnel.proxy.state.virtual_services import (
    HealthCheckNodePort,
    NodeFacts,
    Problem,
    has_node_ports,
)
from yurttunnel.tunnel.reactor import IReactor

_FLAG = "healthCheckNodePort"


def listening_hosts(facts: NodeFacts) -> Collection[str]:
    """Return the addresses to listen on: those that serve node ports, or the unspecified one."""
    # Listening on a link-local address would also require the interface.
    own = [each for each in facts.addresses if not each.is_link_local]
    found = [str(each) for each in own if has_node_ports(each, facts.node_port_networks)]
    if len(found) < len(own) and len(found) <= MAX_ADDRESSES:
        return found
    # The unspecified IPv6 address accepts both families.
    return ["::" if 6 in facts.versions else "0.0.0.0"]


class HealthCheckServers:
    """Serves the health check ports of Services; ``is_alive()`` returns whether this proxy is up to
    date.

    ``hosts()`` returns the addresses to listen on.
    """

    def __init__(
        self, reactor: IReactor, hosts: Callable[[], Collection[str]], is_alive: Callable[[], bool]
    ) -> None:
        self._reactor = reactor
        self._hosts = hosts
        self._is_alive = is_alive
        self._desired: Mapping[int, HealthCheckNodePort] = {}
        self._open: dict[tuple[str, int], IListeningPort] = {}
        self._failed: dict[int, str] = {}

    async def update(self, desired: Mapping[int, HealthCheckNodePort]) -> None:
        """Serve the ``desired`` ports from now on; retry those that could not be opened."""
        self._desired = desired
        wanted = {(host, port) for host in self._hosts() for port in desired}
        unwanted = [self._open.pop(place) for place in self._open.keys() - wanted]
        # Close these before opening others: a socket for all addresses would conflict with them.
        await gatherResults([maybeDeferred(each.stopListening) for each in unwanted])
        self._failed.clear()
        for host, port in wanted - self._open.keys():
            # Load balancers may be configured with any path and method.
            pages = {"/*": partial(self._answer, port)}
            site = LimitedSite(pages, self._reactor, only_probes=True)
            try:
                self._open[host, port] = listen_tcp(self._reactor, _FLAG, host, port, site)
            except CannotListen as error:
                self._failed[port] = str(error)

    def problems(self) -> Collection[Problem]:
        """Return the ports that could not be opened."""
        found = ((self._desired[port], why) for port, why in self._failed.items())
        return [Problem(f"{each.namespace}/{each.name}", why) for each, why in found]

    async def stop(self) -> None:
        """Stop serving."""
        ports, self._open = self._open, {}
        await gatherResults([maybeDeferred(port.stopListening) for port in ports.values()])

    def _answer(self, port: int, request: PageRequest) -> PageResponse:
        check, alive = self._desired.get(port), self._is_alive()
        # A client that connected before the port was closed may send a request afterwards.
        local = 0 if check is None else check.local_endpoints
        shown: dict[str, object] = {"localEndpoints": local, "serviceProxyHealthy": alive}
        if check is not None:
            shown = {"service": {"namespace": check.namespace, "name": check.name}, **shown}
        return PageResponse(
            b"application/json",
            json.dumps(shown).encode() + b"\n",
            200 if local and alive else 503,
            ((b"X-Load-Balancing-Endpoint-Weight", b"%d" % local),),
        )
