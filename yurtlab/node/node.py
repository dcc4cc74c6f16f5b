"""The edge node: registers itself with the API, and runs its pods.

It is behind the tunnel like any other node. Its agent is another process, and traffic of the tunnel
reaches it over TLS on its own port. Only its access to the API is more direct, as both are in one
process here.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurtlab.api.resources import LEASES, NODES, PODS
from yurtlab.api.store import DELETED, Object, Store
from yurtlab.node import leftovers
from yurtlab.node.kubelet import Kubelet
from yurtlab.node.metrics import NodeMetrics
from yurtlab.node.node_object import node_lease, node_object, node_status
from yurtlab.node.pods import Pod, PodSettings
from yurtlab.node.processes import Exit, Process, Program


class Guardian(Service):
    """A small process that is connected to the node by a pipe.

    The pipe closes when the node ends, in whatever way; then the process kills everything that has
    a mark of ``run``. It also does so when this service stops, which waits for it.
    """

    _log = Logger()

    def __init__(self, reactor: Any, run: str) -> None:
        self._reactor = reactor
        self._run = run
        self._process: Process | None = None
        self._stopped: Deferred[None] | None = None

    def startService(self) -> None:
        """Start the process. Raises ``StartFailed``."""
        super().startService()
        # By its path and without site-packages: it starts faster and takes 10 MB less.
        arguments = [sys.executable, "-I", "-S", leftovers.__file__, f"{self._run}/"]
        # The search for leftovers checks again a process that has no environment yet.
        environment = {"LC_ALL": "C"}
        program = Program(arguments, environment, "/", stdin=True)
        self._process = Process(self._reactor, program, self._output_received, self._ended)

    def stopService(self) -> Deferred[None]:
        """Have all marked processes killed; fires when that is done."""
        super().stopService()
        if self._process is None:
            return succeed(None)
        self._stopped = Deferred()
        self._process.end_input()
        return self._stopped

    def _output_received(self, stream: str, data: bytes) -> None:
        self._log.error("guardian: {said}", said=data.decode("utf-8", "replace"))

    def _ended(self, end: Exit) -> None:
        self._process = None
        if self._stopped is not None:
            self._stopped.callback(None)
        elif self.running:
            self._log.warn(
                "the guardian has ended with status {status}: if this process is killed now,"
                " processes of pods will survive it",
                status=end.code,
            )


HEARTBEAT_SECONDS = 60.0
"""The interval at which the node reports its status."""

LEASE_SECONDS = int(4 * HEARTBEAT_SECONDS)
"""The duration of its lease: as in the kubelet, three renewals may be missed."""

LEASE_NAMESPACE = "kube-node-lease"
"""The namespace of the leases of nodes (``v1.NamespaceNodeLease``)."""

STOP_SECONDS = 2.0
"""The time for processes to end when the node stops."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The name and the address of the node; ``directory`` is for its pods."""

    name: str
    address: str
    port: int
    directory: Path


class Node(Service):
    """A node of ``store``; ``handler`` responds to the requests to its kubelet."""

    _log = Logger()

    def __init__(self, reactor: Any, store: Store, settings: NodeSettings) -> None:
        self._reactor = reactor
        self._store = store
        self._settings = settings
        self._pods: dict[str, Pod] = {}
        run = uuid.uuid4().hex
        pods = settings.directory.absolute() / "pods"
        self._pod_settings = PodSettings(settings.address, pods, run)
        self._guardian = Guardian(reactor, run)
        self._unwatch: list[Callable[[], None]] = []
        self._heartbeat = LoopingCall(self._send_heartbeat)
        self._heartbeat.clock = reactor
        metrics = NodeMetrics(reactor, settings.name, self._pods.values)
        self.handler = Kubelet(reactor, metrics, self._find_pod, self._list_pods)

    def startService(self) -> None:
        """Register the node, and start its pods."""
        super().startService()
        self._pod_settings.directory.mkdir(parents=True, exist_ok=True)
        self._guardian.startService()
        self._register()
        _ = self._heartbeat.start(HEARTBEAT_SECONDS).addErrback(self._heartbeat_failed)
        self._unwatch = [
            self._store.watch(NODES, self._node_changed),
            self._store.watch(PODS, self._pod_changed),
        ]

    def stopService(self) -> Deferred[None]:
        """Stop all processes of pods; fires when none is left."""
        super().stopService()
        for unwatch in self._unwatch:
            unwatch()
        if self._heartbeat.running:
            self._heartbeat.stop()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await gatherResults([pod.stop(STOP_SECONDS) for pod in tuple(self._pods.values())])
        # This kills processes that have escaped from their pod.
        await self._guardian.stopService()

    def runs(self, namespace: str, name: str) -> bool:
        """Return whether all main containers of a pod run, after its init containers ended."""
        pod = self._find_pod(namespace, name)
        return pod is not None and all(one.running for one in pod.containers)

    # The node's object

    def _register(self) -> None:
        name = self._settings.name
        if self._store.find(NODES, None, name) is None:
            self._store.create(NODES, None, node_object(name))
        else:
            self._log.info("node {name} is registered already", name=name)

    def _node_changed(self, change: str, body: Object) -> None:
        if change == DELETED and body["metadata"]["name"] == self._settings.name:
            # The kubelet registers itself again as well.
            self._register()
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        """Renew the lease, and report the status."""
        settings = self._settings
        node = self._store.get(NODES, None, settings.name)
        self._renew_lease(node)
        previous = node.get("status") or {}
        status = node_status(
            previous,
            settings.name,
            settings.address,
            settings.port,
            settings.directory,
            self._reactor.seconds(),
        )
        self._store.update_status(NODES, None, settings.name, {**previous, **status})

    def _renew_lease(self, node: Object) -> None:
        name = self._settings.name
        lease = node_lease(node, LEASE_SECONDS, self._reactor.seconds())
        if self._store.find(LEASES, LEASE_NAMESPACE, name) is None:
            self._store.create(LEASES, LEASE_NAMESPACE, lease)
        else:
            self._store.replace(LEASES, LEASE_NAMESPACE, name, lease)

    def _heartbeat_failed(self, reason: Failure) -> None:
        self._log.failure("updating the node's status failed", reason)

    # Its pods

    def _pod_changed(self, change: str, body: Object) -> None:
        if body["spec"].get("nodeName") != self._settings.name:
            return
        metadata = body["metadata"]
        pod = self._pods.get(metadata["uid"])
        if change == DELETED:
            if pod is not None:
                pod.forget()
            return
        if pod is None:
            pod = Pod(self._reactor, self._store, self._pod_settings, body, self._pod_removed)
            self._pods[pod.uid] = pod
            if "deletionTimestamp" not in metadata:
                pod.start()
        if "deletionTimestamp" in metadata:
            pod.delete(metadata.get("deletionGracePeriodSeconds", 0))

    def _pod_removed(self, pod: Pod) -> None:
        del self._pods[pod.uid]

    def _find_pod(self, namespace: str, name: str) -> Pod | None:
        """Return a pod; of several with one name the youngest, as the others are terminating."""
        found = [
            pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)
        ]
        return found[-1] if found else None

    def _list_pods(self) -> Sequence[Object]:
        name = self._settings.name
        return [pod for pod in self._store.list(PODS) if pod["spec"].get("nodeName") == name]
