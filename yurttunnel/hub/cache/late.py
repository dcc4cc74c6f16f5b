"""Late lists, from API servers that lag: they must not restore deleted objects.

A scope that is known up to a version contains all its objects of that version. So if a list has an
older object that such a scope selects but does not contain, the object was deleted since, or no
longer matches the selectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import NamedTuple

from yurttunnel.hub.cache import objects
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.selectors import changing_part, stored_selector
from yurttunnel.hub.cache.versions import Version, is_older, version_of
from yurttunnel.hub.media.interfaces import Item


class NewerScope(NamedTuple):
    """A scope that is known up to a later version than that of a list; see ``schema.py``."""

    scope: Scope
    version: int
    whole_from: int

    def covers(self, item: Item) -> bool:
        """Return whether an item, in this or a newer version, would be stored if it existed."""
        selects = stored_selector(self.scope)
        return is_older(version_of(item.version), self.version) and selects(item)

    def incomplete_below(self, scope: Scope) -> int:
        """Return the version below which a scope may be incomplete; 0 if it is complete."""
        is_elsewhere = self.scope.namespace and scope.namespace not in ("", self.scope.namespace)
        is_whole = self.version >= self.whole_from
        if is_elsewhere or (is_whole and objects.is_within(scope, changing_part(self.scope))):
            return 0
        return max(self.version, self.whole_from)


def newer_scopes(
    connection: Connection, row: int, collection: Collection, version: Version
) -> Sequence[NewerScope]:
    """Return the scopes of a collection that are known beyond a version."""
    if not isinstance(version, int):
        return ()
    rows = connection.execute(
        "SELECT namespace, label_selector, field_selector, version, whole_from FROM scopes"
        " WHERE collection = ? AND typeof(version) = 'integer' AND version > ?",
        (row, version),
    )
    return [NewerScope(Scope(collection, *each[:3]), *each[3:]) for each in rows]


def without_deleted(
    connection: Connection, row: int, newer: Sequence[NewerScope], items: Sequence[Item]
) -> Sequence[Item]:
    """Return the items without those that one of the scopes knows to be deleted or changed."""
    if not newer:
        return items
    absent = objects.absent(connection, row, (item[:2] for item in items))
    return [
        item
        for item in items
        if item[:2] not in absent or not any(each.covers(item) for each in newer)
    ]


def list_incomplete_below(newer: Sequence[NewerScope], scope: Scope) -> int:
    """Return the version below which a list of a scope may be incomplete, 0 if it is complete.

    An object that has left the selection of another scope may still exist.
    """
    return max((each.incomplete_below(scope) for each in newer), default=0)
