"""Events of the containers of a pod, as the kubelet writes them."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from yurtlab.api.errors import ApiError
from yurtlab.api.pod_events import pod_event
from yurtlab.api.resources import EVENTS
from yurtlab.api.store import Object, Store, timestamp


class PodEvents:
    """Writes the events of one pod, given by its object, to ``store``.

    An event that is the same as one before is counted instead of written again.
    """

    def __init__(self, clock: IReactorTime, store: Store, pod: Object) -> None:
        self._clock = clock
        self._store = store
        self._pod = pod
        self._namespace: str = pod["metadata"]["namespace"]
        self._known: dict[tuple[str, str, str], str] = {}

    def record(self, container: str, kind: str, reason: str, message: str) -> None:
        """Write that something has happened to the container with that name.

        ``kind`` and ``reason`` are as in :func:`pod_event`.
        """
        key = (container, reason, message)
        name = self._known.get(key)
        if name is None or not self._count(name):
            created = self._store.create(
                EVENTS, self._namespace, self._event(container, kind, reason, message)
            )
            self._known[key] = created["metadata"]["name"]

    def _count(self, name: str) -> bool:
        """Count one that is there; false when it has been dropped meanwhile."""
        try:
            event = self._store.get(EVENTS, self._namespace, name)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        event["count"] += 1
        event["lastTimestamp"] = timestamp(self._clock.seconds())
        self._store.replace(EVENTS, self._namespace, name, event)
        return True

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
