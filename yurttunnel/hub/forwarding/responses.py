"""The processing of responses from the API: cached, changed by filters, or forwarded unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import Fields
from yurttunnel.http.head import RequestHead, ResponseHead
from yurttunnel.http.interfaces import IBodySink, IBodySource
from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.cache.interfaces import ICache, IIncomingList, Scope
from yurttunnel.hub.cache.selectors import PODS, scope_of
from yurttunnel.hub.cache.versions import successor
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.forwarding.bodies import (
    BatchedParse,
    Decompressor,
    InlineParse,
    SinkWrapper,
    WrappedBody,
    changed_list,
    changed_object,
    changed_watch,
)
from yurttunnel.hub.forwarding.caching import (
    MAX_BUFFERED_DOCUMENTS,
    MAX_ITEM,
    DeletedListCacher,
    DocumentCacher,
    IAbandonable,
    ICacher,
    ItemPredicate,
    ListCacher,
    ObjectCacher,
    WatchCacher,
)
from yurttunnel.hub.forwarding.deferred_parse import (
    COMPRESSED_SLICE,
    SLICE,
    DeferredParse,
    IdleScheduler,
)
from yurttunnel.hub.forwarding.recent_responses import RecentResponses
from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.interfaces import ICodec, Item
from yurttunnel.hub.media.kinds import NotAList
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.accept import document_form, json_forms, response_form
from yurttunnel.hub.request.dry_run import is_dry_run
from yurttunnel.hub.request.requests import ApiRequest, HubCall, ListOptions
from yurttunnel.kube.protobuf_fields import BadBody
from yurttunnel.metrics import Metric, counter
from yurttunnel.ops.log import RateLimitedLog

# Statuses are integers here, because an enum lookup costs as much as a function call.
_CACHEABLE_STATUSES = frozenset({200, 201, 202})
"""The statuses of responses that contain the requested object."""

DELETIONS = frozenset({"delete", "deletecollection"})
"""The verbs whose responses remove objects from the cache."""

MAX_VIEW = 1024
"""Maximum length of a view, the part of a field selector that cannot be evaluated here. Nothing
with a longer one is cached: each queued object has it in memory, and an hour's collections do."""

_SHARD = re.compile(rb"[?&]shardSelector=[^&]")
"""A pattern for a target; the names of a list's parameters are not percent-encoded."""

_VERSION = re.compile(rb"[?&]resourceVersion=[^&]")
"""The same, for a get."""

_CHANGED_FIELDS = frozenset({b"content-length", b"etag"})
"""Header fields that are not valid for a changed body."""


@dataclass(slots=True)
class ResponsePlan:
    """The processing of the response to ``call``.

    ``client`` is the client in collections, empty if nothing is cached; ``change`` is what filters
    do to objects.
    """

    call: HubCall
    client: str
    change: Change | None
    cacher: IAbandonable | None = None
    """The reader of the body, once there is one."""


class _Decision:
    """Whether responses to requests with one head are cached with the current ``agents``."""

    __slots__ = ("agents", "caches")

    def __init__(self, head: RequestHead) -> None:
        self.agents: frozenset[str] | None = None
        self.caches = False


class _Target(NamedTuple):
    """How a response is read, and where its objects are cached."""

    codec: ICodec
    scope: Scope
    cache: ICache | None
    should_cache: ItemPredicate | None
    is_recent: Callable[[bytes], bool]


class ResponseHandler:
    """Processes responses, for ``policy`` and ``cache``; its creator must close it."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, cache: ICache, policy: Policy) -> None:
        self._cache = cache
        self._policy = policy
        self._recent = RecentResponses(clock)
        self._scheduler = IdleScheduler(clock)
        # Keys: whether they are for pods.
        self._documents = {pods: SharedLimit(MAX_BUFFERED_DOCUMENTS) for pods in (False, True)}
        self._limited = RateLimitedLog(clock, self._log)
        self.unreadable = 0
        """The number of bodies that could not be parsed."""

    def close(self) -> None:
        """Discard the lists that have not been parsed."""
        self._scheduler.close()

    def caches(self, call: HubCall) -> bool:
        """Return whether the response is cached, once the owner of its token is known."""
        decision, agents = call.exchange.head.derived(_Decision), self._policy.cache_agents
        if decision.agents is not agents:
            decision.agents, decision.caches = agents, self._decide(call)
        return decision.caches

    def _decide(self, call: HubCall) -> bool:
        request = call.request
        if request.verb in DELETIONS and not request.subresource:
            # A deletion removes the cached objects.
            request = replace(request, verb="update")
        return _is_cacheable(call.exchange.head) and self._policy.caches(call.caller, request)

    def plan(self, call: HubCall, change: Change | None, owner: str | None) -> ResponsePlan | None:
        """Return the processing of the response, ``None`` if it is forwarded unchanged.

        The response is cached for ``owner``, empty for the node, and not at all with ``None``.
        """
        client = "" if owner is None else self._policy.client(call.caller, owner)
        return ResponsePlan(call, client, change) if client or change is not None else None

    def body(
        self,
        plan: ResponsePlan,
        head: ResponseHead,
        fields: Fields,
        source: IBodySource,
        abort: Callable[[], object],
    ) -> tuple[Fields, IBodySource]:
        """Return the fields and the body for the client; ``abort()`` aborts the response."""
        call, status = plan.call, head.status
        types = head.by_name.get(b"content-type")
        codings = head.by_name.get(b"content-encoding")
        if not types or call.exchange.head.method == b"HEAD":
            return fields, source
        if call.request.resource is None:
            if status == 200 and plan.client:
                form = document_form(types[0])
                text = types[0].decode("latin-1")
                places, share_holder = (
                    self._documents[call.share_holder is not None],
                    call.share_holder,
                )
                document = DocumentCacher(
                    self._cache, call.request.path, form, text, places, share_holder
                )
                return fields, self._parse_inline(plan, document, codings, source)
            return fields, source
        target = self._target(plan, types[0])
        if target is None:
            if status in _CACHEABLE_STATUSES and plan.client and call.request.verb in DELETIONS:
                self._mark_changed(plan.client, call.request, "")
            return fields, source
        if status == 404:
            self._remove_missing(plan)
        if status not in _CACHEABLE_STATUSES:
            return fields, source
        cacher, wrap_sink, listing = self._objects(plan, target)
        if wrap_sink is None:
            return fields, self._parse_inline(plan, cacher, codings, source, listing)
        plan.cacher = cacher
        end = partial(self._abort, plan, abort)
        return _without_length(fields), WrappedBody(source, lambda sink: wrap_sink(sink, end))

    def _remove_missing(self, plan: ResponsePlan) -> None:
        """Remove an object from the cache after a 404."""
        client, request = plan.client, plan.call.request
        # For the status of a custom resource without a status subresource, the API also returns a
        # 404 for the object (crdHandler of k8s.io/apiextensions-apiserver
        # pkg/apiserver/customresource_handler.go).
        is_whole = request.name and not request.subresource
        if not (client and request.verb in ("get", "delete") and is_whole):
            return
        if _VERSION.search(plan.call.exchange.head.target) is not None:
            # A watch cache that lags may not have it yet, so it stays where a list covers its
            # namespace: the deletion of a listed object is also reported to a watch.
            self._cache.mark_changed(
                client, str(request.resource), request.namespace, "0", request.name
            )
        else:
            self._on_deleted(client, request, "")

    # A plan refers to the reader of its body, and the reader to these methods. They take only what
    # they need of the plan, so that the two are no cycle, which only the garbage collector frees.

    def _on_deleted(self, client: str, request: ApiRequest, version: str) -> None:
        """Remove an object from all collections of its client; a newer object is its successor."""
        self._cache.remove_object(
            client, str(request.resource), request.namespace, request.name, version
        )

    def _on_listed_deleted(self, client: str, request: ApiRequest, item: Item) -> None:
        """Remove a listed object of a deletecollection, unless it has changed since."""
        self._cache.remove_object(
            client, str(request.resource), item.namespace, item.name, successor(item.version)
        )

    def _mark_changed(self, client: str, request: ApiRequest, version: str) -> None:
        """Record that requested objects have changed after ``version``, if they still exist."""
        self._cache.mark_changed(
            client, str(request.resource), request.namespace, successor(version), request.name
        )

    def _target(self, plan: ResponsePlan, content_type: bytes) -> _Target | None:
        """Return how a response is read and cached, ``None`` if its form is not known here.

        The target is stored with the head of the request, because most requests are repeated.
        """
        kind = plan.client, plan.change is None, content_type
        targets = plan.call.exchange.head.derived(_targets)
        if kind not in targets:
            # Over time one head may have responses of many kinds.
            targets.clear()
            targets[kind] = self._make_target(plan, content_type)
        return targets[kind]

    def _make_target(self, plan: ResponsePlan, content_type: bytes) -> _Target | None:
        call, request = plan.call, plan.call.request
        # With filters, only the forms that they can process were requested.
        forms = call.forms if plan.change is None else json_forms(call.forms)
        form = response_form(content_type, forms)
        codec = None if form is None else codec_for(form)
        if form is None or codec is None:
            return None
        try:
            scope = scope_of(plan.client, request, form)
        except RequestFailed:
            # The API has accepted selectors that cannot be parsed here. Their results are not
            # cached, but filters are applied.
            scope = scope_of("", replace(request, options=ListOptions()), form)
        is_cached_scope = scope.collection.client and len(scope.collection.view) <= MAX_VIEW
        # A pod without a node may be the successor of the one that runs here.
        kubelet = call.caller.component == "kubelet"
        return _Target(
            codec,
            scope,
            self._cache if is_cached_scope else None,
            _has_node if kubelet and request.resource == PODS else None,
            partial(self._recent.is_recent, (scope.collection, request.path)),
        )

    def _objects(
        self, plan: ResponsePlan, target: _Target
    ) -> tuple[ICacher, SinkWrapper | None, IIncomingList | None]:
        """Return the reader of the body, the change of the body, and the list in the cache."""
        codec, scope, cache, should_cache, is_recent = target
        request, change = plan.call.request, plan.change
        wrap_sink: SinkWrapper | None = None
        listing: IIncomingList | None = None
        cacher: ICacher
        if request.verb == "list":
            token = request.options.continue_token
            listing = None if cache is None else cache.begin_list(scope, token)
            cacher = items = ListCacher(codec.list_reader(MAX_ITEM), listing, should_cache)
            if change is not None:
                wrap_sink = changed_list(items, change)
        elif request.verb == "watch":
            initial, since = request.options.send_initial_events, request.options.resource_version
            if initial or since == "0":
                # It begins with the current state, or at any version.
                since = ""
            reader = codec.watch_reader(MAX_ITEM)
            cacher = events = WatchCacher(reader, cache, scope, should_cache, initial, since)
            if change is not None:
                wrap_sink = changed_watch(events, codec, change)
        elif request.verb == "deletecollection":
            cacher = DeletedListCacher(
                codec.list_reader(MAX_ITEM),
                partial(self._on_listed_deleted, plan.client, request),
                partial(self._mark_changed, plan.client, request),
            )
        else:
            on_deleted = partial(self._on_deleted, plan.client, request)
            cacher = one = ObjectCacher(
                codec, cache, scope.collection, should_cache, request.verb, on_deleted
            )
            if change is not None:
                wrap_sink = changed_object(one, change)
            elif request.verb == "get":
                one.is_recent = is_recent
        return cacher, wrap_sink, listing

    def _parse_inline(
        self,
        plan: ResponsePlan,
        cacher: ICacher,
        codings: list[bytes] | None,
        source: IBodySource,
        listing: IIncomingList | None = None,
    ) -> IBodySource:
        """Let ``cacher`` read the body; a ``listing`` is parsed after it was forwarded."""
        slice = SLICE
        coding = b",".join(codings).lower() if codings else b"identity"
        if coding == b"gzip":
            cacher = Decompressor(cacher)
            slice = COMPRESSED_SLICE
        elif coding != b"identity":
            cacher.abandon()
            return source
        plan.cacher = cacher
        on_error = partial(self._cannot_parse, plan.call)
        if plan.call.request.verb == "watch":
            defer = partial(self._cache.defer, plan.client)
            plan.cacher = watch = BatchedParse(source, cacher, on_error, defer)
            return watch
        if listing is None:
            return InlineParse(source, cacher, on_error)

        def deferred(sink: IBodySink) -> IBodySink:
            # If the client disconnects, the rest is not read.
            plan.cacher = reading = DeferredParse(
                sink, cacher, on_error, listing, self._scheduler, slice
            )
            return reading

        return WrappedBody(source, deferred)

    def _cannot_parse(self, call: HubCall, error: Exception) -> None:
        if call.request.verb == "deletecollection" and isinstance(error, NotAList):
            # A Status, which does not name the deleted objects.
            return
        self._count_error(error)
        self._limited.warn(
            "the response to {component} ({verb} {path}) is forwarded, but cannot be cached:"
            " {error}",
            component=call.caller.component,
            verb=call.request.verb,
            path=call.request.path,
            error=error,
        )

    def _count_error(self, error: Exception) -> None:
        self.unreadable += 1
        if not isinstance(error, BadBody):
            self._log.failure("Defect: the body of a response could not be parsed", Failure(error))

    def _abort(self, plan: ResponsePlan, abort: Callable[[], object], error: Exception) -> None:
        self._count_error(error)
        self._limited.error(
            "the response to {component} ({verb} {path}) is aborted, because filters that apply"
            " cannot parse it: {error}",
            component=plan.call.caller.component,
            verb=plan.call.request.verb,
            path=plan.call.request.path,
            error=error,
        )
        if plan.cacher is not None:
            plan.cacher.abandon()
        abort()


def _is_cacheable(head: RequestHead) -> bool:
    # What a user may see by impersonation must not be cached for either user.
    return b"impersonate-user" not in head.by_name and not is_dry_run(head) and not _is_shard(head)


def _is_shard(head: RequestHead) -> bool:
    """Return whether a shard of the objects is requested, which cannot be evaluated here
    (KEP-5866).

    A cached list of it would replace the complete list.
    """
    return _SHARD.search(head.target) is not None


def _targets(head: RequestHead) -> dict[tuple[str, bool, bytes], _Target | None]:
    """Return the targets of the responses to a request, by client, change and content type."""
    return {}


def _has_node(item: Item) -> bool:
    return bool(item.node)


def _without_length(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [field for field in fields if field[0].lower() not in _CHANGED_FIELDS]


METRICS: tuple[Metric[ResponseHandler], ...] = (
    counter(
        "yurthub_unreadable_answers",
        "Responses that the hub could not parse for caching or filtering. Responses to be cached"
        " are passed on but not cached; responses to be filtered are aborted. The log has the"
        " details.",
        lambda handler: handler.unreadable,
    ),
)
