"""Ports that tell load balancers whether a Service has endpoints on this node.

A Service with ``externalTrafficPolicy: Local`` has one, its ``healthCheckNodePort``; the answer is
kube-proxy's (``pkg/proxy/healthcheck/service_health.go`` of Kubernetes).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.web.resource import Resource

from yurttunnel.ops.http_site import LimitedSite, PageRequest
from yurttunnel.ops.listen import CannotListen, listen_tcp
from yurttunnel.proxy.state.virtual_services import HealthCheckNodePort, Problem
from yurttunnel.tunnel.reactor import IReactor

_FLAG = "healthCheckNodePort"


class HealthCheckServers:
    """Answers on the ports of Services; ``is_alive()`` says whether this proxy keeps up.

    ``host`` is the address to listen on.
    """

    def __init__(self, reactor: IReactor, host: str, is_alive: Callable[[], bool]) -> None:
        self._reactor = reactor
        self._host = host
        self._is_alive = is_alive
        self._desired: Mapping[int, HealthCheckNodePort] = {}
        self._open: dict[int, IListeningPort] = {}
        self._failed: dict[int, str] = {}

    def update(self, desired: Mapping[int, HealthCheckNodePort]) -> None:
        """Answer for ``desired`` from now on; what could not be opened is tried again."""
        self._desired = desired
        for port in self._open.keys() - desired.keys():
            # Nobody waits for it: the kernel refuses from now on.
            _ = maybeDeferred(self._open.pop(port).stopListening)
        self._failed.clear()
        for port in desired.keys() - self._open.keys():
            page = _Answer(partial(self._answer, port))
            # A load balancer may be told any path.
            site = LimitedSite(page, self._reactor, serves_probes_alone=True)
            try:
                self._open[port] = listen_tcp(self._reactor, _FLAG, self._host, port, site)
            except CannotListen as error:
                self._failed[port] = str(error)

    def problems(self) -> Collection[Problem]:
        """Return which could not be opened."""
        found = ((self._desired[port], why) for port, why in self._failed.items())
        return [Problem(f"{each.namespace}/{each.name}", why) for each, why in found]

    async def _stop(self) -> None:
        ports, self._open = self._open, {}
        await gatherResults([maybeDeferred(port.stopListening) for port in ports.values()])

    def stop(self) -> Deferred[None]:
        """Answer no more."""
        return Deferred.fromCoroutine(self._stop())

    def _answer(self, port: int) -> tuple[int, dict[str, object]]:
        check, alive = self._desired.get(port), self._is_alive()
        if check is None:
            # Whoever was connected before the port was closed may ask afterwards.
            return 503, {"localEndpoints": 0, "serviceProxyHealthy": alive}
        shown = {
            "service": {"namespace": check.namespace, "name": check.name},
            "localEndpoints": check.local_endpoints,
            "serviceProxyHealthy": alive,
        }
        return 200 if check.local_endpoints and alive else 503, shown


class _Answer(Resource):
    """The one page, at any path."""

    isLeaf = True

    def __init__(self, find: Callable[[], tuple[int, dict[str, object]]]) -> None:
        super().__init__()
        self._find = find

    def render(self, request: PageRequest) -> bytes:
        """Answer ``request``, whatever its method is."""
        status, shown = self._find()
        request.setResponseCode(status)
        for name, value in (
            (b"content-type", b"application/json"),
            (b"x-content-type-options", b"nosniff"),
            (b"x-load-balancing-endpoint-weight", str(shown["localEndpoints"]).encode()),
            (b"server", b"yurttunnel"),
        ):
            request.setHeader(name, value)
        return json.dumps(shown).encode() + b"\n"
