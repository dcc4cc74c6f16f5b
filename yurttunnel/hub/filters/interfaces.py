"""The seam of filters, which change what a client sees of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.plugin import IPlugin
from zope.interface import Attribute, Interface

from yurttunnel.hub.request.requests import ApiRequest, Caller

Object = dict[str, Any]

Change = Callable[[Object], Object | None]
"""Returns what a client sees of an object, which it may change in place; ``None`` hides it."""


class IFilter(IPlugin):
    """One filter; a plugin, so that other packages can have theirs."""

    name: str = Attribute("`str`: as flags and ``yurt-hub-cfg`` have it.")
    components: frozenset[str] = Attribute("`frozenset[str]`: whose requests it is for.")

    def applies(request: ApiRequest) -> bool:
        """Return whether it has something to change in the answer to a request."""

    def change(obj: Object) -> Object | None:
        """Change one object, or hide it."""


class IFilters(Interface):
    """Those of a hub, as they are configured at this moment."""

    def change_for(caller: Caller, request: ApiRequest) -> Change | None:
        """Return what the answer goes through, ``None`` when nothing applies.

        Where something does, the API is asked for JSON, whatever else the client accepts.
        """
