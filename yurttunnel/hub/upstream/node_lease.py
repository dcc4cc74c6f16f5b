"""The node's Lease: the node's heartbeat for the cloud, and the health check of API servers.

A check of a server renews the Lease (KEP-589), or only reads it if it was just renewed through
another server: all servers share one store, and each write costs. A server that is unhealthy has to
renew it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.http.simple_client import CompleteResponse
from yurttunnel.hub.interfaces import IIdentity
from yurttunnel.hub.upstream.calls import CALL_ERRORS, ApiCalls
from yurttunnel.hub.upstream.servers import Server
from yurttunnel.kube.resources import LEASES, NODES
from yurttunnel.ops.clocks import micro_time, time_of_day
from yurttunnel.ops.log import RateLimitedLog

LEASE_NAMESPACE = "kube-node-lease"
"""The namespace of node Leases (``NamespaceNodeLease`` of k8s.io/api core/v1)."""

LEASE_SECONDS = 40
"""The duration of the Lease in seconds (kubelet's ``nodeLeaseDurationSeconds``)."""


_RENEWAL_SHARE = 0.9
"""The share of the interval after which the Lease is renewed; checks start a little early."""


_REJECTIONS = frozenset(range(400, 500)) - {401, 403, 404}
"""Statuses without handling of their own; a node that is not registered gets 404."""


class CheckFailed(Exception):
    """A server is unhealthy; the message is one line."""


class NodeLease:
    """The Lease of ``node``, renewed every ``interval`` seconds while ``kubelet_is_alive()``.

    After each check it reports to ``identity`` whether all servers accept the node's certificate.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        calls: ApiCalls,
        node: str,
        interval: float,
        kubelet_is_alive: Callable[[], bool],
        identity: IIdentity,
    ) -> None:
        self._clock = clock
        self._calls = calls
        self._node = node
        self._interval = interval
        self._kubelet_lives = kubelet_is_alive
        self._identity = identity
        # The servers that reject the node's certificate, and the generation that each rejects.
        self._rejecting: dict[Server, object] = {}
        self._collection = LEASES.path(LEASE_NAMESPACE).encode("ascii")
        self._path = LEASES.path(LEASE_NAMESPACE, node).encode("ascii")
        self._renewed_at = float("-inf")
        # The healthy server through which the Lease is being renewed.
        self._renewing: Server | None = None
        self._kubelet_is_missing = False
        self._limited = RateLimitedLog(clock, self._log, 600.0)
        self.renewals = 0
        """The number of renewals since the start."""

    async def check(self, server: Server, fresh: bool) -> None:
        """Check ``server``; raise :class:`CheckFailed`.

        With ``fresh`` a new connection is used, because the server may have closed an idle one.
        """
        certificate = self._certificate_in_use()
        status = 0
        try:
            if self._is_to_be_renewed(server):
                response = await self._renew(server, fresh)
            else:
                response = await self._send(server, b"GET", self._path, fresh=fresh)
            status = response.status
        except CALL_ERRORS as error:
            raise CheckFailed(str(error)) from error
        finally:
            # Also if the check is cancelled by its timeout. But a later attempt of the same check
            # that had no time for a response does not replace the result of the first.
            if status or not fresh:
                self._note_acceptance(server, certificate, status)
        self._note(response)

    def _is_to_be_renewed(self, server: Server) -> bool:
        is_alive = self._kubelet_lives()
        if is_alive is self._kubelet_is_missing:
            self._kubelet_is_missing = not is_alive
            self._log_kubelet(is_alive)
        if not is_alive or not server.healthy:
            # A recovering server has to show that it accepts writes.
            return is_alive
        if self._renewing is not None:
            return False
        return self._clock.seconds() >= self._renewed_at + self._interval * _RENEWAL_SHARE

    def _log_kubelet(self, is_alive: bool) -> None:
        if is_alive:
            self._log.info("kubelet is back: the Lease of {node} is renewed", node=self._node)
        else:
            self._log.warn(
                "kubelet has not renewed its Lease for too long: the Lease of {node} is not"
                " renewed, so the node becomes NotReady; check the kubelet, and that its"
                " kubeconfig uses this hub",
                node=self._node,
            )

    async def _renew(self, server: Server, fresh: bool) -> CompleteResponse:
        # Checks of other servers only read meanwhile; if this fails, the next check renews.
        if server.healthy:
            self._renewing = server
        try:
            sent_at = self._clock.seconds()
            patch = {"spec": self._spec()}
            response = await self._send(server, b"PATCH", self._path, patch, fresh)
            if response.status == 404:
                response = await self._create(server)
                if response.status == 409:
                    # The check of another server has created it meanwhile.
                    response = await self._send(server, b"PATCH", self._path, patch)
            if 200 <= response.status <= 299:
                self._renewed_at = sent_at
                self.renewals += 1
            elif response.status in _REJECTIONS:
                self._limited.warn(
                    "the Lease of {node} was not renewed: the API responds with {status}; retrying"
                    " at the next check; if this continues, the node becomes NotReady",
                    node=self._node,
                    status=response.status,
                )
            return response
        finally:
            if self._renewing is server:
                self._renewing = None

    async def _create(self, server: Server) -> CompleteResponse:
        """Create the Lease, owned by the Node, so that it is deleted with the Node."""
        path = NODES.path(name=self._node).encode("ascii")
        response = await self._send(server, b"GET", path)
        uid = _uid(response) if response.status == 200 else None
        if uid is None:
            # A node that is not registered yet has no Lease.
            return response
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {
                "name": self._node,
                "namespace": LEASE_NAMESPACE,
                "ownerReferences": [owner],
            },
            "spec": self._spec(),
        }
        return await self._send(server, b"POST", self._collection, lease)

    def _spec(self) -> dict[str, Any]:
        return {
            "holderIdentity": self._node,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": micro_time(time_of_day(self._clock)),
        }

    def _note(self, response: CompleteResponse) -> None:
        """Accept any response except 401 and 5xx, which other requests would get, too."""
        if response.status == 401:
            raise CheckFailed(
                "it does not accept the certificate of this node (401): give a new join token by"
                " POST /v1/token of the meta port"
            )
        if response.status >= 500:
            raise CheckFailed(f"it responds with {response.status}")
        if response.status == 403:
            self._limited.error(
                "the Lease of {node} cannot be renewed, so the node becomes NotReady: the API"
                " responds with 403; its authorizers must include Node, or the node's group needs"
                " verbs get, create and patch on leases in {namespace}",
                node=self._node,
                namespace=LEASE_NAMESPACE,
            )

    def _certificate_in_use(self) -> object:
        contexts = self._identity.node
        return None if contexts is None else contexts.generation

    def _note_acceptance(self, server: Server, certificate: object, status: int) -> None:
        """Record the response of a server to ``certificate``; the status is 0 without a response.

        A server that returns 5xx may still reject it. A server that does not respond does not
        count: it may never come back.
        """
        if status == 401:
            self._rejecting[server] = certificate
        elif status < 500:
            self._rejecting.pop(server, None)
        # A rejection of the previous certificate does not apply to its successor.
        is_rejected = self._certificate_in_use() in self._rejecting.values()
        self._identity.note_acceptance(not is_rejected)

    async def _send(
        self,
        server: Server,
        method: bytes,
        path: bytes,
        body: dict[str, Any] | None = None,
        fresh: bool = False,
    ) -> CompleteResponse:
        kind = b"merge-patch+json" if method == b"PATCH" else b"json"
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        return await self._calls.send(
            server, method, path, data, b"application/" + kind, fresh=fresh
        )


def _uid(response: CompleteResponse) -> str | None:
    try:
        uid = json.loads(response.body)["metadata"]["uid"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return uid if isinstance(uid, str) else None
