"""The controllers of workloads in a cluster without a controller manager.

They use only the API, so they work with any API server. A Deployment or DaemonSet is reported as
rolled out at once: a test creates its pods if it needs some. For a Job they create the pod.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from tests.apiserver.workloads import JOB_NAME
from yurttunnel.kube.interfaces import IInformers, IKubeClient, InformerSpec
from yurttunnel.kube.resources import NODES, PODS, Object, Resource
from yurttunnel.kube.work_queue import WorkQueue

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
JOBS = Resource("batch", "v1", "jobs", "Job")


def _unchanged(body: Object) -> Object:
    return body


class WorkloadControllers(Service):
    """Sets the status of workloads, as their controllers would.

    ``entrypoint`` is the entry point of containers of Jobs, instead of an image's.
    """

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        informers: IInformers,
        entrypoint: Sequence[str],
    ) -> None:
        self._client = client
        self._entrypoint = list(entrypoint)
        self._queue = WorkQueue(clock, self._reconcile)
        self._informers = {
            "deployments": informers.informer(InformerSpec(DEPLOYMENTS, _unchanged)),
            "daemonsets": informers.informer(InformerSpec(DAEMON_SETS, _unchanged)),
            "jobs": informers.informer(InformerSpec(JOBS, _unchanged)),
        }
        self._pods = informers.informer(InformerSpec(PODS, _unchanged, label_selector=JOB_NAME))
        self._unfollow: list[Callable[[], None]] = []

    def startService(self) -> None:
        """Start, with the existing objects."""
        super().startService()
        self._queue.startService()
        self._unfollow = [
            informer.add_handler(self._follower(plural))
            for plural, informer in self._informers.items()
        ]
        self._unfollow.append(self._pods.add_handler(self._pod_changed))

    def stopService(self) -> Deferred[None] | None:
        """Stop."""
        super().stopService()
        for unfollow in self._unfollow:
            unfollow()
        return self._queue.stopService()

    def _follower(self, plural: str) -> Callable[[Object | None, Object | None], None]:
        def changed(old: Object | None, new: Object | None) -> None:
            if new is not None:
                self._add(plural, new["metadata"]["namespace"], new["metadata"]["name"])

        return changed

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            metadata = new["metadata"]
            self._add("jobs", metadata["namespace"], metadata["labels"][JOB_NAME])

    def _add(self, plural: str, namespace: str, name: str) -> None:
        self._queue.add(f"{plural}/{namespace}/{name}")

    async def _reconcile(self, key: str) -> None:
        plural, namespace, name = key.split("/")
        body = self._informers[plural].get(name, namespace)
        if body is None:
            return
        status = await {
            "deployments": self._deployment,
            "daemonsets": self._daemon_set,
            "jobs": self._job,
        }[plural](body)
        if status is not None and status != body.get("status"):
            resource = self._informers[plural].spec.resource
            await self._client.update(resource, {**body, "status": status}, "status")

    async def _deployment(self, body: Object) -> Object:
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        return _counted(body, counts, body["spec"]["replicas"])

    async def _daemon_set(self, body: Object) -> Object:
        selector = body["spec"]["template"]["spec"].get("nodeSelector") or {}
        found = await self._client.list(
            NODES, label_selector=",".join(f"{name}={value}" for name, value in selector.items())
        )
        counts = ("desiredNumberScheduled", "currentNumberScheduled", "updatedNumberScheduled")
        counts += ("numberReady", "numberAvailable")
        return _counted(body, counts, len(found["items"]))

    async def _job(self, body: Object) -> Object | None:
        metadata = body["metadata"]
        pod = self._pods.get(metadata["name"], metadata["namespace"])
        if pod is None:
            await self._client.create(PODS, self._pod(body), metadata["namespace"])
            return None
        ended = {"Succeeded": "Complete", "Failed": "Failed"}
        phase = (pod.get("status") or {}).get("phase")
        if phase not in ended:
            return None
        return {"conditions": [{"type": ended[phase], "status": "True"}]}

    def _pod(self, job: Object) -> Object:
        """Return the pod of a Job, with the fields that a process of this machine supports."""
        template = job["spec"]["template"]
        spec = template["spec"]
        containers = [
            {
                "name": one["name"],
                "image": one["image"],
                "command": one.get("command") or self._entrypoint,
                "args": one.get("args") or [],
            }
            for one in spec["containers"]
        ]
        labels = copy.deepcopy((template.get("metadata") or {}).get("labels") or {})
        return {
            "metadata": {"name": job["metadata"]["name"], "labels": labels},
            "spec": {
                **{name: spec[name] for name in ("nodeName", "restartPolicy") if name in spec},
                "containers": containers,
            },
        }


def _counted(body: Object, fields: Sequence[str], count: int) -> Object:
    """Return a status in which all pods of the workload are ready and up to date."""
    generation = body["metadata"]["generation"]
    return {"observedGeneration": generation, **dict.fromkeys(fields, count)}
