"""A Kubernetes API in memory, with the contract of a client.

The contract, ``tests.kube.contract_client``, is also tested for the real client.
"""

from __future__ import annotations

import copy
import datetime
import itertools

from twisted.internet.defer import Deferred, fail
from zope.interface import implementer

from yurttunnel.kube.errors import AlreadyExists, ApiError, Conflict, Expired, NotFound
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.selectors import field_terms, label_test

_WITH_STATUS = frozenset({"Node", "Pod", "Service", "CertificateSigningRequest"})
_SERVER_METADATA = ("uid", "creationTimestamp", "name", "namespace", "generateName")


def micro_time(seconds):
    """Format a time, in seconds since 1970, as ``metav1.MicroTime``."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Watch:
    """A watch in progress."""

    def __init__(self, resource, on_event, namespace, selects):
        self.resource = resource
        self.on_event = on_event
        self.namespace = namespace
        self.selects = selects
        self.done = Deferred(lambda _: self.end())
        self.ended = False
        self.timer = None
        self.delivered = 0

    def end(self):
        """Stop reporting."""
        self.ended = True
        if self.timer is not None and self.timer.active():
            self.timer.cancel()

    def finish(self, result=None):
        """End regularly, or with an error."""
        if self.ended:
            return
        self.end()
        if isinstance(result, Exception):
            self.done.errback(result)
        else:
            self.done.callback(None)

    def tell(self, event):
        """Report a change as seen through the watch's selectors."""
        version, resource, kind, old, new = event
        if self.ended or resource != self.resource or version <= self.delivered:
            return
        self.delivered = version
        was, is_now = self._wants(old), kind != "DELETED" and self._wants(new)
        if is_now:
            self.on_event("MODIFIED" if was else "ADDED", copy.deepcopy(new))
        elif was:
            self.on_event("DELETED", copy.deepcopy(new))

    def _wants(self, obj):
        if obj is None or self.namespace not in (None, obj["metadata"].get("namespace")):
            return False
        return self.selects(obj)


@implementer(IKubeClient)
class FakeKubeClient:
    """Objects in memory. Calls complete at once, unless :meth:`hold` was called.

    Methods for tests have no ``Deferred``: :meth:`put`, :meth:`remove`, :meth:`look`,
    :meth:`objects`. ``calls`` are tuples of verb, plural, and name or ``None``, in order;
    ``watches`` are those in progress. ``page_limit`` is the API's page limit, whatever is
    requested. ``answers`` has functions by verb and plural, which are called with the body first.
    Their result replaces the body, or is the response if the verb is ``create`` and the resource is
    not stored (reviews).
    """

    def __init__(self, clock):
        self._clock = clock
        self._stored = {}
        self._version = 1000
        self._oldest = 1000
        self._history = []
        self._pages = {}
        self._tokens = itertools.count(1)
        self._names = itertools.count(1)
        self._error = None
        self._held = None
        self._untold = []
        self._telling = False
        self.calls = []
        self._watches = []
        self.page_limit = None
        self.answers = {}

    # What a test does

    @property
    def watches(self):
        """The watches in progress."""
        self._watches = [each for each in self._watches if not each.ended]
        return list(self._watches)

    def put(self, resource, body):
        """Create an object or replace it with its status; return it as stored."""
        body = copy.deepcopy(body)
        metadata = body["metadata"]
        namespace = metadata.get("namespace") if resource.namespaced else None
        old = self._stored.get((resource, namespace, metadata["name"]))
        if old is None:
            return self._create(resource, body, namespace)
        metadata.pop("resourceVersion", None)
        return self._replace(resource, old, body)

    def remove(self, resource, name, namespace=None):
        """Remove an object."""
        self._delete(resource, name, namespace)

    def look(self, resource, name, namespace=None):
        """Return a copy of an object, ``None`` if it does not exist."""
        return copy.deepcopy(self._stored.get((resource, namespace, name)))

    def objects(self, resource):
        """Return copies of all objects of a resource, ordered by namespace and name."""
        return [copy.deepcopy(obj) for obj in self._selected(resource, None, lambda obj: True)]

    def fail(self, error):
        """Fail all calls with ``error`` from now on, and the watches in progress."""
        self._error = error
        self.end_watches(error)

    def recover(self):
        """Stop failing."""
        self._error = None

    def hold(self):
        """Delay responses until :meth:`release`; requests still take effect at once."""
        self._held = []

    def release(self):
        """Deliver the delayed responses, and stop delaying others."""
        held, self._held = self._held, None
        for answer in held:
            answer()

    def end_watches(self, error=None):
        """End the watches in progress, regularly or with ``error``."""
        for watch in self.watches:
            watch.finish(error)

    def bookmark(self):
        """Send a bookmark to all watches."""
        for watch in self.watches:
            metadata = {"resourceVersion": str(self._version)}
            watch.on_event("BOOKMARK", {"kind": watch.resource.kind, "metadata": metadata})

    def forget_history(self):
        """Expire all versions so far, also those of partially read lists."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()
        self._pages.clear()

    # What a client does

    def get(self, resource, name, namespace=None):
        """Read one object."""
        return self._answer(("get", resource, name), lambda: self._get(resource, name, namespace))

    def list(
        self,
        resource,
        namespace=None,
        *,
        label_selector="",
        field_selector="",
        limit=None,
        continue_token="",
    ):
        """Read a list or a page of it."""

        def answer():
            if continue_token:
                return self._next_page(resource, continue_token, limit)
            selects = _selector(label_selector, field_selector)
            items = self._selected(resource, namespace, selects)
            return self._page(resource, self._version, items, limit)

        return self._answer(("list", resource, None), answer)

    def create(self, resource, body, namespace=None):
        """Create an object."""
        body = copy.deepcopy(body)
        change = self.answers.get(("create", resource.plural))

        def answer():
            created = body if change is None else change(body)
            if resource.plural.endswith("reviews"):
                return created
            if not resource.namespaced:
                return self._create(resource, created, None)
            return self._create(
                resource, created, namespace or created["metadata"].get("namespace")
            )

        return self._answer(("create", resource, body.get("metadata", {}).get("name")), answer)

    def update(self, resource, body, subresource=None):
        """Replace an object or a subresource."""
        body = copy.deepcopy(body)
        name = body["metadata"]["name"]

        def answer():
            namespace = body["metadata"].get("namespace")
            old = self._find(resource, name, namespace)
            new = _updated(resource, old, body, subresource)
            return self._replace(resource, old, new)

        plural = resource.plural if subresource is None else f"{resource.plural}/{subresource}"
        return self._answer(("update", resource, name), answer, plural)

    def delete(self, resource, name, namespace=None, *, grace=None):
        """Delete an object, at once whatever its grace period."""
        return self._answer(
            ("delete", resource, name), lambda: self._delete(resource, name, namespace)
        )

    def watch(
        self,
        resource,
        on_event,
        namespace=None,
        *,
        label_selector="",
        field_selector="",
        resource_version,
        timeout,
    ):
        """Watch changes."""
        self.calls.append(("watch", resource.plural, None))
        if self._error is not None:
            return fail(self._error)
        since = int(resource_version)
        if since < self._oldest:
            text = f"too old resource version: {since} ({self._version})"
            return fail(Expired(410, "Expired", text))
        watch = _Watch(resource, on_event, namespace, _selector(label_selector, field_selector))
        watch.delivered = since
        watch.timer = self._clock.callLater(timeout, watch.finish)
        self._watches.append(watch)
        for event in tuple(self._history):
            watch.tell(event)
        return watch.done

    # Inside

    def _answer(self, call, answer, plural=None):
        verb, resource, name = call
        self.calls.append((verb, plural or resource.plural, name))
        answered = Deferred()
        try:
            if self._error is not None:
                raise self._error
            result = copy.deepcopy(answer())
        except Exception as error:
            self._give(answered, answered.errback, error)
        else:
            self._give(answered, answered.callback, result)
        return answered

    def _give(self, answered, give, result):
        if self._held is None:
            give(result)
        else:
            self._held.append(lambda: answered.called or give(result))

    def _find(self, resource, name, namespace):
        try:
            return self._stored[resource, namespace if resource.namespaced else None, name]
        except KeyError:
            text = f'{_qualified(resource)} "{name}" not found'
            raise NotFound(404, "NotFound", text) from None

    def _get(self, resource, name, namespace):
        return self._find(resource, name, namespace)

    def _create(self, resource, body, namespace):
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name"):
            metadata["name"] = f"{metadata['generateName']}{next(self._names):05d}"
        key = (resource, namespace, metadata["name"])
        if key in self._stored:
            text = f'{_qualified(resource)} "{metadata["name"]}" already exists'
            raise AlreadyExists(409, "AlreadyExists", text)
        if namespace:
            metadata["namespace"] = namespace
        metadata["uid"] = f"uid-{next(self._names)}"
        metadata["creationTimestamp"] = micro_time(self._clock.seconds())[:19] + "Z"
        typed = {"kind": resource.kind, "apiVersion": resource.api_version}
        return self._commit(key, "ADDED", None, {**typed, **body})

    def _replace(self, resource, old, new):
        metadata = old["metadata"]
        kept = {key: metadata[key] for key in _SERVER_METADATA if key in metadata}
        version = new["metadata"].get("resourceVersion")
        if version not in (None, "", metadata["resourceVersion"]):
            text = f'Operation cannot be fulfilled on {_qualified(resource)} "{metadata["name"]}"'
            raise Conflict(409, "Conflict", f"{text}: the object has been modified")
        typed = {"kind": resource.kind, "apiVersion": resource.api_version}
        new = {**typed, **new, "metadata": {**new["metadata"], **kept}}
        new["metadata"]["resourceVersion"] = metadata["resourceVersion"]
        if new == old:
            return old
        key = (resource, metadata.get("namespace"), metadata["name"])
        return self._commit(key, "MODIFIED", old, new)

    def _delete(self, resource, name, namespace):
        old = self._find(resource, name, namespace)
        key = (resource, old["metadata"].get("namespace"), name)
        self._commit(key, "DELETED", old, copy.deepcopy(old))

    def _commit(self, key, kind, old, new):
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        if kind == "DELETED":
            del self._stored[key]
        else:
            self._stored[key] = new
        event = (self._version, key[0], kind, old, new)
        self._history.append(event)
        self._untold.append(event)
        self._tell()
        return new

    def _tell(self):
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                event = self._untold.pop(0)
                for watch in self.watches:
                    watch.tell(event)
        finally:
            self._telling = False

    def _selected(self, resource, namespace, selects):
        found = sorted(
            (key[1] or "", key[2], obj)
            for key, obj in self._stored.items()
            if key[0] == resource and namespace in (None, key[1]) and selects(obj)
        )
        return [obj for _, _, obj in found]

    def _next_page(self, resource, token, limit):
        if token not in self._pages:
            raise Expired(410, "Expired", "The provided continue parameter is too old")
        return self._page(resource, *self._pages[token], limit)

    def _page(self, resource, version, items, limit):
        limits = [each for each in (limit, self.page_limit) if each]
        size = min(limits, default=len(items))
        metadata = {"resourceVersion": str(version)}
        if size < len(items):
            token = str(next(self._tokens))
            self._pages[token] = (version, items[size:])
            metadata["continue"] = token
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": items[:size],
        }


def _qualified(resource):
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _updated(resource, old, body, subresource):
    """Return the part of a body that an update of the object, or of a subresource, changes."""
    version = body["metadata"].get("resourceVersion")
    if subresource == "status":
        new = {**old, "status": body.get("status", {})}
    elif subresource == "approval":
        conditions = body.get("status", {}).get("conditions", [])
        new = {**old, "status": {**old.get("status", {}), "conditions": conditions}}
    elif subresource is not None:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    else:
        new = dict(body)
        if resource.kind in _WITH_STATUS:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
    new = copy.deepcopy(new)
    new["metadata"]["resourceVersion"] = version
    return new


def _selector(labels, fields):
    """Parse selectors."""
    wanted, terms = label_test(labels), field_terms(fields)

    def selects(obj):
        return wanted(obj["metadata"].get("labels") or {}) and all(
            term.holds(_field(obj, term.field)) for term in terms
        )

    return selects


def _field(obj, path):
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return "" if obj is None else str(obj)


class FakeEvents:
    """Stores the events of an ``EventRecorder`` in ``recorded``."""

    def __init__(self):
        self.recorded = []

    def record(self, involved, type, reason, message):
        """Store an event."""
        self.recorded.append((involved, type, reason, message))
