"""Makes clients list again when their responses become cached, or are no longer cached.

The decision to cache a response is made when it begins, and watches are long. A watch that began
before its client was listed in ``cache_agents``, or before the hub had read that list, is not
cached. Its events would be missing from the cache, because a reflector lists only once.

The same applies if the API did not report the owner of a client's token, for example because it
was overloaded; and if the cache has a new file, because its file was damaged, removed or replaced,
or is of another version of the hub: the new file has none of the lists that open watches continue.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.filters.interfaces import IWatchTracker
from yurttunnel.hub.filters.relist import EXPIRED, end_when_changed
from yurttunnel.hub.filters.watches import State, TrackedWatches
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.failures import send_failure
from yurttunnel.hub.request.requests import ApiRequest, Caller, HubCall


@implementer(IWatchTracker)
class CachedWatches:
    """Tracks the lists and watches that ``policy`` caches in ``cache``.

    Also tracked are those that it may cache with another ``configuration``. ``has_owner(token)`` is
    that of :class:`~yurttunnel.hub.forwarding.token_reviews.TokenReviews`.
    """

    def __init__(
        self,
        policy: Policy,
        configuration: HubConfiguration,
        watches: TrackedWatches,
        cache: ICache,
        has_owner: Callable[[str], bool],
    ) -> None:
        self._policy = policy
        self._watches = watches
        self._cache = cache
        self._has_owner = has_owner
        configuration.on_changed.append(watches.review)
        cache.on_replaced.append(watches.review)

    def begin(self, call: HubCall, changed: bool) -> bool:
        """Track a request; return whether it is to be forwarded.

        A watch is rejected if it continues a list that was cached differently: the client could not
        be notified within the response, which is not parsed. ``changed`` is that of
        :func:`~yurttunnel.hub.filters.relist.end_when_changed`.
        """
        caller, request = call.caller, call.request
        if request.verb not in ("list", "watch"):
            return True
        is_configured = self._policy.is_configured(caller)
        caches = self._policy.caches(caller, request)
        if not (is_configured or caches):
            return True
        state, earlier = self._state(caller, request), _state(caches, 0)
        if request.verb == "list":
            # Without its state, a list counts as one of an earlier run.
            if is_configured or caller.token or state != earlier:
                self._watches.record_list(caller, request, state)
            return True
        if not self._is_owned(caller):
            # The events of this watch will be missing, even if its list was cached.
            self._watches.assume_list(caller, request, state)
        if self._watches.is_outdated(caller, request, state, earlier):
            send_failure(call.exchange, EXPIRED)
            return False
        end_when_changed(self, call, changed)
        return True

    def track(
        self, caller: Caller, request: ApiRequest, end: Callable[[], object]
    ) -> Callable[[], None]:
        return self._watches.track(caller, request, lambda: self._state(caller, request), end)

    def _is_owned(self, caller: Caller) -> bool:
        return not caller.token or self._has_owner(caller.token)

    def _state(self, caller: Caller, request: ApiRequest) -> State:
        caches = self._policy.caches(caller, request) and self._is_owned(caller)
        return _state(caches, self._cache.replacements)


def _state(caches: bool, replacements: int) -> State:
    return (("kept", 1 + replacements if caches else 0),)
