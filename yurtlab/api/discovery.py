"""Which groups, versions and kinds there are: what clients ask first.

Plain (``/api``, ``/apis``, ``/apis/GROUP/VERSION``), and aggregated: all in one answer, as
kubectl asks for it since 1.26 (KEP-3352).
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Any

from yurtlab.api.negotiation import MediaRange
from yurtlab.api.resources import Resource, Subresource

KUBERNETES_VERSION = ("1", "33", 0)
"""The version of Kubernetes whose API this is: kubectl compares it with its own."""

_AGGREGATED_VERSIONS = ("v2", "v2beta1")


class Discovery:
    """Describes ``kinds``."""

    def __init__(self, kinds: Iterable[Resource]) -> None:
        self._kinds = tuple(kinds)

    def find(self, path: str, host: str) -> dict[str, Any] | None:
        """Return the plain document at ``path``, ``None`` when there is none.

        ``host`` is where the client has found the API, as HOST:PORT.
        """
        match path.strip("/").split("/"):
            case ["api"]:
                return self._core_versions(host)
            case ["apis"]:
                groups = [self._group(name) for name in self._groups()]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["apis", group] if group in self._groups():
                return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)}
            case ["api", version]:
                return self._resources("", version)
            case ["apis", group, version]:
                return self._resources(group, version)
        return None

    def aggregated(self, path: str, version: str) -> dict[str, Any] | None:
        """Return the aggregated document at ``path``, in a version of ``apidiscovery.k8s.io``."""
        match path.strip("/"):
            case "api":
                return self._aggregated(version, [""])
            case "apis":
                return self._aggregated(version, self._groups())
        return None

    def _groups(self) -> list[str]:
        return list(dict.fromkeys(kind.group for kind in self._kinds if kind.group))

    def _versions(self, group: str) -> list[str]:
        return list(dict.fromkeys(kind.version for kind in self._kinds if kind.group == group))

    def _core_versions(self, host: str) -> dict[str, Any]:
        return {
            "kind": "APIVersions",
            "versions": self._versions(""),
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
        }

    def _group(self, group: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self._versions(group)
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _in(self, group: str, version: str) -> list[Resource]:
        return [kind for kind in self._kinds if (kind.group, kind.version) == (group, version)]

    def _resources(self, group: str, version: str) -> dict[str, Any] | None:
        kinds = self._in(group, version)
        if not kinds:
            return None
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": kinds[0].api_version,
            "resources": [entry for kind in kinds for entry in _entries(kind)],
        }

    def _aggregated(self, version: str, groups: list[str]) -> dict[str, Any]:
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": [self._aggregated_group(group) for group in groups],
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


def aggregated_type(version: str) -> str:
    """Return the media type of aggregated discovery."""
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def aggregated_version(accepted: Iterable[MediaRange]) -> str | None:
    """Return the version of aggregated discovery that a client prefers to plain discovery."""
    for one in accepted:
        parameters = one.parameters
        if parameters.get("as") == "APIGroupDiscoveryList":
            if parameters.get("v") in _AGGREGATED_VERSIONS:
                return parameters["v"]
        elif one.type in ("application/json", "*/*"):
            return None
    return None


def version_document() -> dict[str, str]:
    """Return the answer at ``/version``."""
    major, minor, patch = KUBERNETES_VERSION
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{major}.{minor}.{patch}+yurttunnel",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "",
        "platform": f"linux/{platform.machine()}",
    }


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
