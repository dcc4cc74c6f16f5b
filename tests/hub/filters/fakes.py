"""Filters that do what a test says."""

from __future__ import annotations

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import Change, IFilters


@implementer(IFilters)
class FakeFilters:
    """Changes what ``change`` does, nothing without it; ``ends`` are of the watches that run."""

    def __init__(self):
        self.change = None
        self.ends = []

    def change_for(self, caller, request):
        """Return the change."""
        return None if self.change is None else Change(self.change)

    def follow(self, caller, request, end):
        """Keep ``end`` until the watch has ended."""
        self.ends.append(end)
        return lambda: self.ends.remove(end)
