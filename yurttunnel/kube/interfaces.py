"""The seams of the Kubernetes API: a client, and caches that follow kinds of objects."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.kube.resources import Object, Resource

Value = TypeVar("Value")


class IKubeClient(Interface):
    """Asks the API. No call blocks the reactor, each has a deadline, and cancelling ends it.

    All fail with :class:`~yurttunnel.kube.errors.ApiError` or a subclass of it, or with
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
        """Read a list (``FooList``), or one page of it; ``namespace`` ``None`` is all of them."""

    def create(resource: Resource, body: Object, namespace: str | None = None) -> Deferred[Object]:
        """Create an object; ``apiVersion`` and ``kind`` are filled in when they are missing."""

    def update(
        resource: Resource, body: Object, subresource: str | None = None
    ) -> Deferred[Object]:
        """Replace an object, or a subresource of it, by name and namespace of its metadata.

        With a ``resourceVersion`` in it, a change in the meantime fails with ``Conflict``.
        """

    def delete(
        resource: Resource, name: str, namespace: str | None = None, *, grace: int | None = None
    ) -> Deferred[None]:
        """Delete an object; a pod within ``grace`` seconds instead of what it asks for itself."""

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
        """Follow changes after ``resource_version`` for ``timeout`` seconds, with bookmarks.

        ``on_event(type, object)`` is called for ADDED, MODIFIED, DELETED and BOOKMARK; an event
        ERROR fails the ``Deferred`` instead, as an answer that is one does: with ``Expired`` when
        the version is too old. It fires when the API ends the watch in good order, and fails with
        ``WatchCut`` when something between cuts off one that the API has answered.
        """


@dataclass(frozen=True, slots=True)
class InformerSpec(Generic[Value]):
    """What an informer follows, and what it keeps of it.

    ``transform`` makes of each object what is kept; it is a function of a module, since equal
    specifications share one informer. Objects it returns must not be changed, and two that are
    equal are no change. ``name`` is for a single object.
    """

    resource: Resource
    transform: Callable[[Object], Value]
    namespace: str | None = None
    name: str | None = None
    label_selector: str = ""
    field_selector: str = ""


class IInformer(Interface):
    """A cache of objects of one kind that follows the API.

    While the API is out of reach it goes on with what it has.
    """

    spec: InformerSpec[Any] = Attribute("`InformerSpec`: what it follows.")
    synced: bool = Attribute("`bool`: it has been complete once.")
    error: Exception | None = Attribute(
        "`Exception | None`: why it cannot follow the API now; `None` while all is well."
    )

    def get(name: str, namespace: str | None = None) -> Any | None:
        """Return what is kept of an object, ``None`` when there is none."""

    def values() -> Collection[Any]:
        """Return all that is kept."""

    def when_synced() -> Deferred[None]:
        """Fire when it is complete, or at once if it has been; cancelling stops the waiting."""

    def add_handler(changed: Callable[[Any | None, Any | None], object]) -> Callable[[], None]:
        """Have ``changed(old, new)`` called for each change, and first for what is there.

        ``old`` is ``None`` for what is new, ``new`` for what is gone. The function that is
        returned ends it. What it raises is logged and stops nobody else's.
        """


class IInformers(Interface):
    """The informers of a process, each kind followed once however many want it."""

    def informer(spec: InformerSpec[Any]) -> IInformer:
        """Return the informer for ``spec``; it is made, and started, when it is not there."""

    def when_synced() -> Deferred[None]:
        """Fire when all informers there are at this moment are complete."""

    def problem() -> str | None:
        """Return, for ``/readyz``, which caches are not complete or have not heard of the API."""
