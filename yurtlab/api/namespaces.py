"""Namespaces: the initial ones, and the deletion of a namespace with its contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from yurtlab.api import errors, names
from yurtlab.api.access import User
from yurtlab.api.resources import NAMESPACES, SERVICE_ACCOUNTS, Resource
from yurtlab.api.store import ADDED, DELETED, Event, Object, Store
from yurtlab.api.strategy import Strategy

INITIAL = ("default", "kube-node-lease", "kube-public", "kube-system")
"""The namespaces of every cluster."""

PROTECTED = frozenset({"default", "kube-public", "kube-system"})
"""The namespaces that cannot be deleted (the NamespaceLifecycle admission of Kubernetes)."""

_NAME_LABEL = "kubernetes.io/metadata.name"


class NamespaceStrategy(Strategy):
    """The strategy of namespaces."""

    name_rule = staticmethod(names.dns_label)

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Label the namespace with its name; it is active immediately."""
        metadata = body["metadata"]
        if metadata.get("name"):
            metadata.setdefault("labels", {})[_NAME_LABEL] = metadata["name"]
        body["spec"] = {"finalizers": ["kubernetes"]}
        body["status"] = {"phase": "Active"}

    def prepare_for_update(self, body: Object, current: Object) -> None:
        """Keep the label and the finalizer."""
        metadata = body["metadata"]
        metadata.setdefault("labels", {})[_NAME_LABEL] = current["metadata"]["name"]
        body["spec"] = current.get("spec", {})


class Namespaces:
    """Creates the namespaces of every cluster, and deletes the contents of deleted namespaces.

    ``kinds`` are all kinds of the API.
    """

    def __init__(self, store: Store, kinds: Iterable[Resource]) -> None:
        self._store = store
        self._kinds = [kind for kind in kinds if kind.namespaced]
        self._unsubscribe = [store.follow(kind, self._contents_changed) for kind in self._kinds]
        self._unsubscribe.append(store.follow(NAMESPACES, self._namespace_changed))
        for name in INITIAL:
            body: Object = {"metadata": {"name": name}}
            NamespaceStrategy().prepare_for_create(body)
            self._store.create(NAMESPACES, None, body)

    def check_active(self, kind: Resource, namespace: str, name: str) -> None:
        """Reject a new object if its namespace does not exist or is being deleted."""
        found = self._store.get(NAMESPACES, None, namespace)
        if "deletionTimestamp" in found["metadata"]:
            text = (
                f"unable to create new content in namespace {namespace}"
                " because it is being terminated"
            )
            raise errors.forbidden(kind.group, kind.plural, name, text)

    def delete(
        self, name: str, end: Callable[[Resource, str, str], object], dry_run: bool = False
    ) -> Object:
        """Delete a namespace after all objects in it; return it in its resulting state.

        ``end`` deletes one object in it as a client would, with its grace period.
        """
        if name in PROTECTED:
            text = "this namespace may not be deleted"
            raise errors.forbidden("", NAMESPACES.plural, name, text)
        marked = self._store.mark_deleted(NAMESPACES, None, name, 0, dry_run)
        if dry_run:
            return marked
        status = {**marked.get("status", {}), "phase": "Terminating"}
        marked = self._store.update_status(NAMESPACES, None, name, status)
        for kind in self._kinds:
            for one in self._store.list(kind, name):
                end(kind, name, one["metadata"]["name"])
        self._remove_if_empty(name)
        return marked

    def stop(self) -> None:
        """Stop watching."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()

    def _namespace_changed(self, event: Event) -> None:
        """Create the service account of pods in a new namespace, as kube-controller-manager."""
        if event.type == ADDED:
            account = {"metadata": {"name": "default"}}
            self._store.create(SERVICE_ACCOUNTS, event.object["metadata"]["name"], account)

    def _contents_changed(self, event: Event) -> None:
        if event.type == DELETED:
            self._remove_if_empty(event.object["metadata"]["namespace"])

    def _remove_if_empty(self, name: str) -> None:
        found = self._store.find(NAMESPACES, None, name)
        if found is None or "deletionTimestamp" not in found["metadata"]:
            return
        if not any(self._store.list(kind, name) for kind in self._kinds):
            self._store.remove(NAMESPACES, None, name)
