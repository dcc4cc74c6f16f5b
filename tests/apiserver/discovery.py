"""Discovery of the groups, versions and kinds, which clients request first.

Plain (``/api``, ``/apis``, ``/apis/GROUP/VERSION``), and aggregated: all in one response, as
requested by kubectl since 1.26 (KEP-3352).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from yurtlab.api.resources import Resource, Subresource


class Discovery:
    """Describes ``kinds``."""

    def __init__(self, kinds: Iterable[Resource]) -> None:
        self._kinds = tuple(kinds)

    def plain(self) -> dict[str, Any]:
        """Return the plain documents by their paths."""
        groups = self._groups()
        listed = [self._group(name) for name in groups]
        found: dict[str, Any] = {
            "api": {"kind": "APIVersions", "versions": self._versions("")},
            "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed},
        }
        for name, group in zip(groups, listed, strict=True):
            found[f"apis/{name}"] = {"kind": "APIGroup", "apiVersion": "v1", **group}
        for group in ("", *groups):
            for version in self._versions(group):
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                found[path] = self._resources(group, version)
        return found

    def aggregated(self) -> dict[str, Any]:
        """Return the groups of the aggregated documents by their paths."""
        return {
            "api": [self._aggregated_group("")],
            "apis": [self._aggregated_group(group) for group in self._groups()],
        }

    def _groups(self) -> list[str]:
        return list(dict.fromkeys(kind.group for kind in self._kinds if kind.group))

    def _versions(self, group: str) -> list[str]:
        return list(dict.fromkeys(kind.version for kind in self._kinds if kind.group == group))

    def _group(self, group: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self._versions(group)
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _in(self, group: str, version: str) -> list[Resource]:
        return [kind for kind in self._kinds if (kind.group, kind.version) == (group, version)]

    def _resources(self, group: str, version: str) -> dict[str, Any]:
        kinds = self._in(group, version)
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": kinds[0].api_version,
            "resources": [entry for kind in kinds for entry in _entries(kind)],
        }

    def _aggregated_group(self, group: str) -> dict[str, Any]:
        metadata = {"name": group} if group else {}
        versions = [
            {
                "version": version,
                "resources": [_aggregated_entry(kind) for kind in self._in(group, version)],
                "freshness": "Current",
            }
            for version in self._versions(group)
        ]
        return {"metadata": {**metadata, "creationTimestamp": None}, "versions": versions}


def _entries(kind: Resource) -> list[dict[str, Any]]:
    entry: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    return [entry, *(_subresource_entry(kind, one) for one in kind.subresources)]


def _subresource_entry(kind: Resource, subresource: Subresource) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": f"{kind.plural}/{subresource.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": subresource.kind,
        "verbs": list(subresource.verbs),
    }
    if subresource.body is not None:
        entry["group"], entry["version"] = subresource.body.group, subresource.body.version
    return entry


def _aggregated_entry(kind: Resource) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": _kind(kind.group, kind.version, kind.kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [
            {
                "subresource": one.name,
                "responseKind": _subresource_kind(kind, one),
                "verbs": list(one.verbs),
            }
            for one in kind.subresources
        ]
    return entry


def _subresource_kind(kind: Resource, subresource: Subresource) -> dict[str, str]:
    of = subresource.body or kind
    return _kind(of.group, of.version, subresource.kind)


def _kind(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}
