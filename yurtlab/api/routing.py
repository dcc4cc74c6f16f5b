"""Which object, or which objects, the path of a request names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from yurtlab.api.resources import Resource


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names: all objects of a kind, those of a namespace, or one of them.

    ``rest`` is what follows a subresource, as it was sent, with its first slash.
    """

    kind: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None
    rest: str = ""


class Routes:
    """Finds targets among ``kinds``."""

    def __init__(self, kinds: Iterable[Resource]) -> None:
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in kinds}

    def find(self, path: str) -> Target | None:
        """Find the target of a path, percent-encoded as it was sent; ``None`` when it has none."""
        match path.split("/"):
            case ["", "api", version, *segments] if segments:
                return self._find("", version, segments)
            case ["", "apis", group, version, *segments] if segments:
                return self._find(unquote(group), version, segments)
        return None

    def _find(self, group: str, version: str, segments: Sequence[str]) -> Target | None:
        namespace = None
        if segments[0] == "namespaces" and len(segments) > 2:
            inside = self._kinds.get((group, version, unquote(segments[2])))
            # What else follows the name of a namespace are its own subresources.
            if inside is not None and inside.namespaced:
                namespace, segments = unquote(segments[1]), segments[2:]
        kind = self._kinds.get((group, version, unquote(segments[0])))
        if kind is None:
            return None
        return _target(kind, namespace, segments[1:])


def _target(kind: Resource, namespace: str | None, segments: Sequence[str]) -> Target | None:
    if not segments or segments == [""]:
        return Target(kind, namespace)
    name = unquote(segments[0])
    if kind.namespaced and namespace is None:
        return None
    if len(segments) == 1:
        return Target(kind, namespace, name)
    subresource = kind.subresource(unquote(segments[1]))
    if subresource is None:
        return None
    rest = "".join(f"/{segment}" for segment in segments[2:])
    if rest and subresource.name != "proxy":
        return None
    return Target(kind, namespace, name, subresource.name, rest)
