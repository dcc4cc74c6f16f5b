"""The ConfigMap ``yurt-hub-cfg``, followed live, with the keys that upstream has.

==================  =========================  ===============================================
key                 example                    meaning
==================  =========================  ===============================================
``cache_agents``    ``ingress, my-operator``   whose answers are kept besides those of the
                                               clients that a node always has; ``*`` is all
name of a filter    ``nginx-ingress, mesh``    for whose requests it is, too
==================  =========================  ===============================================

A name is the first word of User-Agent up to its first slash, in whatever case. The hub follows it
through its own port, so that a node that boots without the cloud has what was set before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from string import ascii_letters, digits

from twisted.logger import Logger

from yurttunnel.cluster.fields import mapping
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import CONFIG_MAPS, Object

CONFIG_MAP = "yurt-hub-cfg"

CACHE_AGENTS = "cache_agents"

ALL = "*"
"""An item that stands for all components."""

_LONGEST_QUOTE = 40

# RFC 9110 section 5.6.2, of which the products in User-Agent are; it has ``*``.
_TOKEN = frozenset(ascii_letters + digits + "!#$%&'*+-.^_`|~")

log = Logger()


class BadComponents(ValueError):
    """A value is no list of components; one line says why."""


def parse_components(value: object) -> frozenset[str]:
    """Read a list of components between commas; raises :class:`BadComponents`."""
    if not isinstance(value, str):
        raise BadComponents("it is not a text")
    items = [item for each in value.split(",") if (item := each.strip())]
    for item in items:
        if not _TOKEN.issuperset(item):
            quoted = repr(item if len(item) <= _LONGEST_QUOTE else f"{item[:_LONGEST_QUOTE]}...")
            raise BadComponents(f"{quoted} is not the first word of a User-Agent")
    return frozenset(item.lower() for item in items)


class HubConfiguration:
    """What is configured for all hubs, kept current by ``informers``.

    ``filters`` are the names of those that there are; other keys are none of ours. Without the
    ConfigMap nothing is configured. A value that cannot be read leaves what it said before.
    """

    def __init__(self, informers: IInformers, namespace: str, filters: Iterable[str]) -> None:
        self.on_changed: list[Callable[[], object]] = []
        """Who is told when a key has changed."""
        self._namespace = namespace
        self._keys = (CACHE_AGENTS, *filters)
        self._components: dict[str, frozenset[str]] = {}
        informers.informer(configuration_spec(namespace)).add_handler(self._changed)

    def components(self, key: str) -> frozenset[str]:
        """Return the components that a key lists."""
        return self._components.get(key, frozenset())

    def _changed(self, old: Object | None, new: Object | None) -> None:
        before, values = mapping(old), mapping(new)
        components = {
            key: self._read(key, values[key], before.get(key))
            for key in self._keys
            if key in values
        }
        if components != self._components:
            self._components = components
            for callback in self.on_changed:
                callback()

    def _read(self, key: str, value: object, before: object) -> frozenset[str]:
        try:
            return parse_components(value)
        except BadComponents as error:
            if value != before:
                log.warn(
                    "ConfigMap {namespace}/{name}, {key}: {error}; the previous value stays in"
                    " use. Write names between commas",
                    namespace=self._namespace,
                    name=CONFIG_MAP,
                    key=key,
                    error=error,
                )
            return self.components(key)


def configured(config_map: Object) -> Mapping[str, object]:
    """Keep of a ``ConfigMap`` its values."""
    return mapping(config_map.get("data"))


def configuration_spec(namespace: str) -> InformerSpec[Mapping[str, object]]:
    """Return what is followed: the one ConfigMap."""
    return InformerSpec(CONFIG_MAPS, configured, namespace=namespace, name=CONFIG_MAP)
