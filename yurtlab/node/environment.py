"""The environment and the command line of a container, by its specification."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any

Object = Mapping[str, Any]

# k8s.io/kubernetes third_party/forked/golang/expansion: $(NAME), and $$ for a dollar sign.
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")

# metadata.labels['name'] and metadata.annotations['name'].
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


class ConfigError(Exception):
    """The container's configuration is invalid; the message is the kubelet's."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand ``$(NAME)``; references to unknown names stay as they are."""
    return _REFERENCE.sub(
        lambda match: "$" if match[1] is None else variables.get(match[1], match[0]), text
    )


class Sources:
    """The sources of values that are references.

    ``configuration(kind, name)`` returns the "ConfigMap" or "Secret" with that name in the pod's
    namespace, or ``None``. ``address`` is that of pod and node.
    """

    def __init__(
        self, pod: Object, address: str, configuration: Callable[[str, str], Object | None]
    ) -> None:
        self._pod = pod
        self._address = address
        self._configuration = configuration

    def field(self, path: str) -> str:
        """Return the value of a ``fieldRef``. Raises :class:`ConfigError`."""
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        subscript = _SUBSCRIPT.fullmatch(path)
        if subscript is not None:
            return str((metadata.get(subscript[1]) or {}).get(subscript[2], ""))
        values = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata.get("namespace", ""),
            "metadata.uid": metadata.get("uid", ""),
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "status.podIP": self._address,
            "status.podIPs": self._address,
            "status.hostIP": self._address,
            "status.hostIPs": self._address,
        }
        if path not in values:
            raise ConfigError(f"fieldPath {path}: this node does not know that field")
        return str(values[path])

    def all_of(self, kind: str, source: Object) -> dict[str, str]:
        """Return all values of a ConfigMap or Secret. Raises :class:`ConfigError`."""
        found = self._find(kind, source)
        return {} if found is None else _contents(kind, found)

    def one_of(self, kind: str, source: Object) -> str | None:
        """Return one of its values, or ``None`` if it is optional and missing."""
        found = self._find(kind, source)
        if found is None:
            return None
        contents, key = _contents(kind, found), source["key"]
        if key not in contents and not source.get("optional"):
            place = f"{self._pod['metadata'].get('namespace', '')}/{source.get('name', '')}"
            raise ConfigError(f"couldn't find key {key} in {kind} {place}")
        return contents.get(key)

    def _find(self, kind: str, source: Object) -> Object | None:
        name = source.get("name", "")
        found = self._configuration(kind, name)
        if found is None and not source.get("optional"):
            raise ConfigError(f'{kind.lower()} "{name}" not found')
        return found


def container_environment(
    container: Object, base: Mapping[str, str], sources: Sources
) -> dict[str, str]:
    """Return the variables of ``base`` and of the container. Raises :class:`ConfigError`."""
    variables = dict(base)
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix") or ""
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if source.get(field):
                for name, value in sources.all_of(kind, source[field]).items():
                    variables[prefix + name] = value
    for entry in container.get("env") or ():
        given = _value(entry, variables, sources)
        if given is not None:
            variables[entry["name"]] = given
    return variables


def container_arguments(container: Object, variables: Mapping[str, str]) -> list[str]:
    """Return command and arguments with their references expanded."""
    parts = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [expand(part, variables) for part in parts]


def _value(entry: Object, variables: Mapping[str, str], sources: Sources) -> str | None:
    origin = entry.get("valueFrom")
    if not origin:
        return expand(entry.get("value") or "", variables)
    if origin.get("fieldRef"):
        return sources.field(origin["fieldRef"]["fieldPath"])
    if origin.get("configMapKeyRef"):
        return sources.one_of("ConfigMap", origin["configMapKeyRef"])
    if origin.get("secretKeyRef"):
        return sources.one_of("Secret", origin["secretKeyRef"])
    kinds = ", ".join(sorted(origin))
    raise ConfigError(f"variable {entry['name']}: this node does not support values from {kinds}")


def _contents(kind: str, found: Object) -> dict[str, str]:
    data = found.get("data") or {}
    if kind == "ConfigMap":
        return dict(data)
    try:
        return {
            name: base64.b64decode(value, validate=True).decode("utf-8", "surrogateescape")
            for name, value in data.items()
        }
    except binascii.Error as error:
        raise ConfigError(f"secret {found['metadata']['name']}: {error}") from None
