"""The Service of the check: created for a pod, called through the service proxy, and deleted."""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any

from kubernetes import client

from yurttunnel.quickstart.assertions import (
    NAMESPACE,
    STEP_SECONDS,
    CheckFailed,
    echo,
    poll_until,
    require,
)

CLUSTER_IP = "10.96.0.10"
"""The address of the Service if rules lead to it: the proxy installs them with ``--firewall``."""

PORT = 80

UNREACHABLE = "127.0.0.2"
"""A local address on which no pod listens."""

CALLS = 6
"""The number of calls, half of which would go to the endpoint that refuses."""

RULES_SECONDS = 1.0
"""The timeout of a connection attempt while the rules are missing: such a packet is lost."""

_BYTES = 4096

# The response to a deletion is the object or a status; the client cannot tell them apart.
_UNREAD: dict[str, Any] = {"_request_timeout": STEP_SECONDS, "_preload_content": False}


class CalledService:
    """Creates Services through ``api``, with slices through ``discovery``.

    ``proxy`` is the address of the service proxy's pages, as HOST:PORT; ``has_rules`` is whether
    cluster IPs lead to it.
    """

    def __init__(
        self, api: client.CoreV1Api, discovery: client.DiscoveryV1Api, proxy: str, has_rules: bool
    ) -> None:
        self._api = api
        self._discovery = discovery
        self._proxy = proxy
        self._has_rules = has_rules

    def call(self, name: str, address: str, port: int) -> str:
        """Create a Service with the echo at ``address`` and a refusing endpoint, and call it."""
        self._api.create_namespaced_service(
            NAMESPACE, _service(name), _request_timeout=STEP_SECONDS
        )
        try:
            slice_ = _slice(name, [address, UNREACHABLE], port)
            self._discovery.create_namespaced_endpoint_slice(
                NAMESPACE, slice_, _request_timeout=STEP_SECONDS
            )
            try:
                where, by = self._where(name)
                for _ in range(CALLS):
                    _call(where)
            finally:
                self._discovery.delete_namespaced_endpoint_slice(name, NAMESPACE, **_UNREAD)
        finally:
            self._api.delete_namespaced_service(name, NAMESPACE, **_UNREAD)
        return f"{CALLS} calls of {CLUSTER_IP}:{PORT}{by}, past an endpoint that refuses"

    def _where(self, name: str) -> tuple[tuple[str, int], str]:
        """Return where to call it, once it is served, and a description of that."""
        port = poll_until(lambda: self._proxy_port(name), "the proxy serves the Service")
        if not self._has_rules:
            return ("127.0.0.1", port), f" by port {port}"
        where = (CLUSTER_IP, PORT)
        poll_until(lambda: _is_reached(where), f"rules redirect {CLUSTER_IP}:{PORT} to the proxy")
        return where, ""

    def _proxy_port(self, name: str) -> int | None:
        """Return the proxy's port for a Service, once it has both endpoints."""
        for each in service_states(self._proxy):
            if each["service"] == f"{NAMESPACE}/{name}" and len(each["endpoints"]) == 2:
                port: int | None = each["proxy_port"]
                return port
        return None


def service_states(proxy: str) -> list[dict[str, Any]]:
    """Return the proxy's state of all Services (its page ``/services``)."""
    connection = http.client.HTTPConnection(proxy, timeout=STEP_SECONDS)
    try:
        connection.request("GET", "/services")
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise CheckFailed(f"the proxy's page /services answers with {response.status}")
    found: list[dict[str, Any]] = json.loads(body)
    return found


def connect(where: tuple[str, int], seconds: float = STEP_SECONDS) -> socket.socket:
    """Connect to the proxy."""
    return socket.create_connection(where, seconds)


def _is_reached(where: tuple[str, int]) -> bool:
    try:
        with connect(where, RULES_SECONDS):
            return True
    except OSError:
        return False


def _call(where: tuple[str, int]) -> None:
    sent = os.urandom(_BYTES)
    with connect(where) as connection:
        require(echo(connection, sent) == sent, True, "what was sent comes back")


# The client sends these in the API's form, which its types do not describe.
def _service(name: str) -> Any:
    return {
        "metadata": {"name": name},
        "spec": {"clusterIP": CLUSTER_IP, "clusterIPs": [CLUSTER_IP], "ports": [{"port": PORT}]},
    }


def _slice(name: str, addresses: list[str], port: int) -> Any:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "", "protocol": "TCP", "port": port}],
        "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in addresses],
    }
