"""Has clients list again when what they are answered is kept from now on, or no longer.

Whether an answer is kept is known when it begins, and a watch lasts. One that has begun before its
client was named in ``cache_agents``, or before the hub knew that it is, tells the cache nothing.
What it has told its client is missing from what later ones tell, since a reflector lists once.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.filters.interfaces import IFollowing
from yurttunnel.hub.filters.relist import EXPIRED, end_when_changed
from yurttunnel.hub.filters.watches import FollowedWatches, State
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.failures import tell
from yurttunnel.hub.request.requests import ApiRequest, Caller, HubCall


@implementer(IFollowing)
class KeptWatches:
    """Looks after lists and watches, which ``policy`` keeps as ``configuration`` says."""

    def __init__(
        self, policy: Policy, configuration: HubConfiguration, watches: FollowedWatches
    ) -> None:
        self._policy = policy
        self._watches = watches
        configuration.on_changed.append(watches.review)

    def begin(self, call: HubCall, changed: bool) -> bool:
        """Take note of a request; return whether it is to be forwarded.

        A watch is refused that goes on from a list that was kept otherwise: amid its answer, which
        nobody looks into, its client could not be told. ``changed`` is that of
        :func:`~yurttunnel.hub.filters.relist.end_when_changed`.
        """
        caller, request = call.caller, call.request
        if request.verb not in ("list", "watch") or not self._policy.is_configured(caller):
            return True
        if request.verb == "list":
            self._watches.listed(caller, request, self._state(caller, request))
            return True
        if self._watches.is_outdated(caller, request, self._state(caller, request)):
            tell(call.exchange, EXPIRED)
            return False
        end_when_changed(self, call, changed)
        return True

    def follow(
        self, caller: Caller, request: ApiRequest, end: Callable[[], object]
    ) -> Callable[[], None]:
        """See :class:`IFollowing`."""
        return self._watches.follow(caller, request, lambda: self._state(caller, request), end)

    def _state(self, caller: Caller, request: ApiRequest) -> State:
        return (("kept", int(self._policy.keeps(caller, request))),)
