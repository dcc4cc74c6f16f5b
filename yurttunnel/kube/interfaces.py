"""The interfaces of the Kubernetes API: a client, and informers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.kube.resources import Object, Resource

Value = TypeVar("Value")


class IKubeClient(Interface):
    """A client of the API. No call blocks the reactor; each has a timeout and can be cancelled.

    All calls fail with :class:`~yurttunnel.kube.errors.ApiError` or a subclass of it, or with
    :class:`~yurttunnel.kube.errors.ApiUnreachable`.
    """

    def get(resource: Resource, name: str, namespace: str | None = None) -> Deferred[Object]:
        """Read one object."""

    def list(
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int | None = None,
        continue_token: str = "",
    ) -> Deferred[Object]:
        """Read a list (``FooList``), or a page of it; ``None`` means all namespaces."""

    def create(resource: Resource, body: Object, namespace: str | None = None) -> Deferred[Object]:
        """Create an object; ``apiVersion`` and ``kind`` are added if they are missing."""

    def update(
        resource: Resource, body: Object, subresource: str | None = None
    ) -> Deferred[Object]:
        """Replace an object, or a subresource of it, by name and namespace of its metadata.

        If it has a ``resourceVersion``, a change in the meantime fails with ``Conflict``.
        """

    def delete(
        resource: Resource, name: str, namespace: str | None = None, *, grace: int | None = None
    ) -> Deferred[None]:
        """Delete an object; ``grace`` overrides a pod's own grace period, in seconds."""

    def watch(
        resource: Resource,
        on_event: Callable[[str, Object], object],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str,
        timeout: float,
    ) -> Deferred[None]:
        """Watch changes after ``resource_version`` for ``timeout`` seconds, with bookmarks.

        ``on_event(type, object)`` is called for ADDED, MODIFIED, DELETED and BOOKMARK. An ERROR
        event fails the ``Deferred`` instead, as an error response does: with ``Expired`` if the
        version is too old. The ``Deferred`` fires when the API ends the watch regularly, and fails
        with ``WatchInterrupted`` if the connection is lost after the response has begun.
        """


class InformerSpec(NamedTuple, Generic[Value]):
    """The objects that an informer watches, and what it caches of them.

    ``transform`` returns the cached value for an object. It is a module-level function, since equal
    specifications share one informer. Its results must not be modified; an equal result is no
    change. ``name`` is for a single object.
    """

    resource: Resource
    transform: Callable[[Object], Value]
    namespace: str | None = None
    name: str | None = None
    label_selector: str = ""
    field_selector: str = ""


def whole(obj: Object) -> Object:
    """Return an object unchanged: the ``transform`` of informers of whole objects."""
    return obj


class IInformer(Interface):
    """A cache of the objects of one kind, updated by a watch of the API.

    While the API is unreachable, the cached state stays in use.
    """

    spec: InformerSpec[Any] = Attribute("`InformerSpec`: what it follows.")
    synced: bool = Attribute("`bool`: it has been complete once.")
    error: Exception | None = Attribute(
        "`Exception | None`: why it cannot follow the API now; `None` while all is well."
    )

    def get(name: str, namespace: str | None = None) -> Any | None:
        """Return the cached value of an object, ``None`` if there is none."""

    def values() -> Collection[Any]:
        """Return all cached values."""

    def when_synced() -> Deferred[None]:
        """Fire when the cache is synced, or at once if it has been; cancelling stops the wait."""

    def add_handler(changed: Callable[[Any | None, Any | None], object]) -> Callable[[], None]:
        """Call ``changed(old, new)`` for all cached values, and then for each change.

        ``old`` is ``None`` for a new object, ``new`` for a deleted one. The returned function
        removes the handler. Its exceptions are logged and do not affect other handlers.
        """


class IInformers(Interface):
    """The informers of a process; equal specifications share one."""

    def informer(spec: InformerSpec[Any]) -> IInformer:
        """Return the informer for ``spec``, which is created and started if it does not exist."""

    def when_synced() -> Deferred[None]:
        """Fire when all existing informers are synced."""

    def problem() -> str | None:
        """Return, for ``/readyz``, which caches are not synced or have lost the API."""
