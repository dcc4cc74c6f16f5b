"""Filters controlled by tests."""

from __future__ import annotations

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import Change, IFilters


@implementer(IFilters)
class FakeFilters:
    """Applies ``change``, or nothing without it; ``ends`` are the callbacks of open watches."""

    def __init__(self):
        self.change = None
        self.ends = []

    def change_for(self, caller, request):
        """Return the change."""
        return None if self.change is None else Change(self.change)

    def track(self, caller, request, end):
        """Store ``end`` until the watch has ended."""
        self.ends.append(end)
        return lambda: self.ends.remove(end)
