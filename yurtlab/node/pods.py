"""A pod on the node: starts its containers in order, restarts them, and terminates them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from yurtlab.api.pods import pod_event
from yurtlab.api.resources import CONFIG_MAPS, EVENTS, PODS, SECRETS
from yurtlab.api.store import Object, Store
from yurtlab.node.containers import Container, ContainerContext
from yurtlab.node.environment import Sources
from yurtlab.node.pod_status import pod_status
from yurttunnel.ops.clocks import timestamp


class PodEvents:
    """Writes the events of a pod, given by its object, to ``store``.

    A repeated event increments the count of the first instead of being written again.
    """

    def __init__(self, clock: IReactorTime, store: Store, pod: Object) -> None:
        self._clock = clock
        self._store = store
        self._pod = pod
        self._namespace: str = pod["metadata"]["namespace"]
        self._event_names: dict[tuple[str, str, str], str] = {}

    def record(self, container: str, kind: str, reason: str, message: str) -> None:
        """Record an event about the container with that name.

        ``kind`` and ``reason`` are those of :func:`pod_event`.
        """
        key = (container, reason, message)
        name = self._event_names.get(key, "")
        # It may have been deleted meanwhile.
        event = self._store.find(EVENTS, self._namespace, name)
        if event is None:
            event = self._event(container, kind, reason, message)
            created = self._store.create(EVENTS, self._namespace, event)
            self._event_names[key] = created["metadata"]["name"]
        else:
            event["count"] += 1
            event["lastTimestamp"] = timestamp(self._clock.seconds())
            self._store.replace(EVENTS, self._namespace, name, event)

    def _event(self, container: str, kind: str, reason: str, message: str) -> Object:
        spec = self._pod["spec"]
        first = any(one["name"] == container for one in spec.get("initContainers") or ())
        place = "initContainers" if first else "containers"
        return pod_event(
            self._pod,
            kind,
            reason,
            message,
            self._clock.seconds(),
            component="kubelet",
            host=spec.get("nodeName", ""),
            field=f"spec.{place}{{{container}}}",
        )


_KINDS = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of a node share.

    ``address`` is the node's, ``directory`` the parent of the pods' directories, ``run`` a unique
    name of this run of the node.
    """

    address: str
    directory: Path
    run: str


class Pod:
    """A pod of ``store`` that this node runs, by its object.

    ``removed(pod)`` is called once all its processes have ended and it is gone from the store.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        store: Store,
        settings: PodSettings,
        body: Object,
        removed: Callable[[Pod], object],
    ) -> None:
        metadata, spec = body["metadata"], body["spec"]
        self._reactor = reactor
        self._store = store
        self._address = settings.address
        self._removed = removed
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.uid: str = metadata["uid"]
        self.policy: str = spec.get("restartPolicy", "Always")
        self.started = reactor.seconds()
        self._directory = settings.directory / self.uid
        context = ContainerContext(
            pod=body,
            sources=Sources(body, settings.address, self._configuration),
            directory=self._directory,
            mark=f"{settings.run}/{self.uid}",
            record=PodEvents(reactor, store, body).record,
        )
        before = spec.get("initContainers") or ()
        reason = "PodInitializing" if before else "ContainerCreating"
        self.init_containers, self.containers = (
            [Container(reactor, context, one, self._changed, reason) for one in specifications]
            for specifications in (before, spec["containers"])
        )
        self._step: IDelayedCall | None = None
        self._grace: float | None = None
        self._in_store = True
        self._ended: list[Deferred[None]] = []
        self._is_removed = False

    @property
    def all_containers(self) -> list[Container]:
        """Its containers, init containers first."""
        return self.init_containers + self.containers

    def find(self, name: str) -> Container | None:
        """Return a container by name, or the first one without a name."""
        if not name:
            return self.containers[0]
        return next((one for one in self.all_containers if one.name == name), None)

    def start(self) -> None:
        """Start it."""
        self._changed()

    def delete(self, grace: float) -> None:
        """Terminate it within ``grace`` seconds and remove it; a later call can shorten that."""
        if self._grace is not None and grace >= self._grace:
            return
        self._grace = grace
        for container in self.all_containers:
            container.stop(grace)
        self._changed()

    def forget(self) -> None:
        """Kill it at once: it has been removed from the store."""
        self._in_store = False
        self.delete(0)

    def stop(self, grace: float) -> Deferred[None]:
        """Stop its processes and keep it in the store; fires when they have ended."""
        ended: Deferred[None] = Deferred()
        self._in_store = False
        self._ended.append(ended)
        self.delete(grace)
        return ended

    # Steps

    def _changed(self) -> None:
        """Schedule the next step; changes until then are handled together."""
        if self._step is None and not self._is_removed:
            self._step = self._reactor.callLater(0, self._take_step)

    def _take_step(self) -> None:
        self._step = None
        try:
            if not self._ending:
                self._run()
            self._publish()
            if self._ending and not any(one.running for one in self.all_containers):
                self._finish()
        except Exception:
            self._log.failure("pod {namespace}/{name}", namespace=self.namespace, name=self.name)

    def _run(self) -> None:
        """Start the containers whose turn it is."""
        for container in self.init_containers:
            end = container.ended
            if end is not None and end.exit.code == 0:
                continue
            if end is not None and self.policy != "Never":
                container.restart()
            elif container.untried:
                container.start()
            return
        for container in self.containers:
            end = container.ended
            if container.untried:
                container.start()
            elif end is not None and self._restarts(end.exit.code):
                container.restart()

    def _restarts(self, code: int) -> bool:
        return self.policy == "Always" or (self.policy == "OnFailure" and code != 0)

    def _publish(self) -> None:
        """Write the status, if the pod still exists."""
        current = self._stored()
        if current is None:
            return
        status = pod_status(
            current.get("status") or {},
            self.policy,
            self.init_containers,
            self.containers,
            self._address,
            self.started,
            self._reactor.seconds(),
        )
        self._store.update_status(PODS, self.namespace, self.name, status)

    def _stored(self) -> Object | None:
        """Return the object, or ``None`` if it is gone or must not be written any more."""
        found = self._store.find(PODS, self.namespace, self.name) if self._in_store else None
        return found if found is not None and found["metadata"]["uid"] == self.uid else None

    # The end

    @property
    def _ending(self) -> bool:
        return self._grace is not None

    def _finish(self) -> None:
        """Clean up after everything has ended."""
        self._is_removed = True
        for container in self.all_containers:
            container.remove()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._stored() is not None:
            self._store.remove(PODS, self.namespace, self.name)
        self._removed(self)
        for ended in self._ended:
            ended.callback(None)

    def _configuration(self, kind: str, name: str) -> Object | None:
        return self._store.find(_KINDS[kind], self.namespace, name)
