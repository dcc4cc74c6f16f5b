"""A cluster's objects in memory, and informers that are updated at once."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from yurttunnel.kube.interfaces import IInformer, IInformers


@implementer(IInformer)
class FakeInformer:
    """An informer that is synced when the test says so."""

    def __init__(self, spec, synced):
        self.spec = spec
        self.synced = synced
        self._kept = {}
        self._handlers = []
        self._waiting = []

    def get(self, name, namespace=None):
        """Return the cached value of an object."""
        return self._kept.get((namespace, name))

    def values(self):
        """Return all cached values."""
        return self._kept.values()

    def when_synced(self):
        """Fire when it is synced."""
        if self.synced:
            return succeed(None)
        self._waiting.append(Deferred())
        return self._waiting[-1]

    def add_handler(self, changed):
        """Call ``changed`` for existing objects and for changes."""
        for value in list(self._kept.values()):
            changed(None, value)
        self._handlers.append(changed)
        return lambda: self._handlers.remove(changed)

    def complete(self):
        """Become synced."""
        self.synced = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)

    def stop(self):
        """Stop before it is synced."""
        for each in self._waiting:
            each.cancel()

    def follow(self, resource, obj, gone=False):
        """Apply a change of an object, if the specification selects it."""
        metadata = obj["metadata"]
        key = (metadata.get("namespace"), metadata["name"])
        if resource != self.spec.resource or not self._wants(obj, *key):
            return
        old = self._kept.pop(key, None)
        new = None if gone else self.spec.transform(obj)
        if new is not None:
            self._kept[key] = new
        if old != new:
            for changed in list(self._handlers):
                changed(old, new)

    def _wants(self, obj, namespace, name):
        spec = self.spec
        labels = obj["metadata"].get("labels", {})
        if spec.field_selector:
            assert spec.field_selector == "spec.nodeName!=", spec.field_selector
            if not obj.get("spec", {}).get("nodeName"):
                return False
        key, _, value = spec.label_selector.partition("=")
        return (
            spec.namespace in (None, namespace)
            and spec.name in (None, name)
            and (not spec.label_selector or labels.get(key) == value)
        )


@implementer(IInformers)
class FakeInformers:
    """The informers of one cluster; ``synced`` also applies to those created later."""

    def __init__(self, synced=True):
        self.synced = synced
        self.by_spec = {}
        self.objects = {}

    def informer(self, spec):
        """Return the informer for ``spec``."""
        if spec not in self.by_spec:
            self.by_spec[spec] = made = FakeInformer(spec, self.synced)
            for (resource, *_), obj in self.objects.items():
                made.follow(resource, obj)
        return self.by_spec[spec]

    def when_synced(self):
        """Fire at once: the tests wait for single informers."""
        return succeed(None)

    def problem(self):
        """Return no problem."""

    def put(self, resource, obj):
        """Create an object, or change it."""
        metadata = obj["metadata"]
        self.objects[resource, metadata.get("namespace"), metadata["name"]] = obj
        for informer in list(self.by_spec.values()):
            informer.follow(resource, obj)

    def delete(self, resource, name, namespace=None):
        """Delete an object."""
        obj = self.objects.pop((resource, namespace, name))
        for informer in list(self.by_spec.values()):
            informer.follow(resource, obj, gone=True)

    def complete(self):
        """Make all informers synced."""
        self.synced = True
        for informer in list(self.by_spec.values()):
            informer.complete()


def node(name, *addresses, port=None, labels=(), ready=True):
    """Create a ``Node``; addresses are ``InternalIP`` unless they are pairs with a type."""
    pairs = [("InternalIP", each) if isinstance(each, str) else each for each in addresses]
    status = {
        "addresses": [{"type": kind, "address": address} for kind, address in pairs],
        "conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": "True" if ready else "Unknown"},
        ],
    }
    if port is not None:
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": port}}
    return {"metadata": {"name": name, "labels": dict(labels)}, "status": status}


EDGE = {"openyurt.io/is-edge-worker": "true"}
CLOUD = {"openyurt.io/is-edge-worker": "false"}


def internal_service(address="10.96.0.7"):
    """Create the Service by which callers reach the server.

    It has an external address, 192.0.2.200, and a node port for each port, 31250 for 10250 and
    31910 for 9100.
    """
    metadata = {"namespace": "kube-system", "name": "x-tunnel-server-internal-svc"}
    ports = [{"port": 10250, "nodePort": 31250}, {"port": 9100, "nodePort": 31910}]
    spec = {"type": "NodePort", "clusterIP": address, "externalIPs": ["192.0.2.200"]}
    return {"metadata": metadata, "spec": {**spec, "ports": ports}}


def pod(namespace, name, node_name=None):
    """Create a ``Pod``."""
    spec = {"containers": [{"name": "web"}]}
    if node_name is not None:
        spec["nodeName"] = node_name
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def config_map(namespace="kube-system", **data):
    """Create the ConfigMap of the ports; underscores in keys stand for hyphens."""
    metadata = {"namespace": namespace, "name": "yurt-tunnel-server-cfg", "uid": "u-1"}
    return {
        "metadata": metadata,
        "data": {key.replace("_", "-"): value for key, value in data.items()},
    }
