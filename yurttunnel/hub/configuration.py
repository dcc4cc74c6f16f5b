"""The informer for the ConfigMap ``yurt-hub-cfg``, with the same keys as upstream.

==================  =========================  ===============================================
key                 example                    meaning
==================  =========================  ===============================================
``cache_agents``    ``ingress, my-operator``   additional clients whose responses are cached,
                                               besides the default clients; ``*`` is all
name of a filter    ``nginx-ingress, mesh``    additional clients that the filter applies to
==================  =========================  ===============================================

A client's name is the first word of its User-Agent up to the first slash, in lower or upper case.
The hub reads the ConfigMap through its own port, so a node that boots offline uses the last cached
configuration.
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
"""An item that matches all components."""

_MAX_QUOTE = 40

# RFC 9110 section 5.6.2: the characters of a token, such as a User-Agent product; ``*`` is one.
_TOKEN = frozenset(ascii_letters + digits + "!#$%&'*+-.^_`|~")

log = Logger()


class BadComponents(ValueError):
    """A value is not a list of components; the message is one line."""


def parse_components(value: object) -> frozenset[str]:
    """Parse a comma-separated list of components; raise :class:`BadComponents`."""
    if not isinstance(value, str):
        raise BadComponents("it is not a text")
    items = [item for each in value.split(",") if (item := each.strip())]
    for item in items:
        if not _TOKEN.issuperset(item):
            quoted = repr(item if len(item) <= _MAX_QUOTE else f"{item[:_MAX_QUOTE]}...")
            raise BadComponents(f"{quoted} is not the first word of a User-Agent")
    return frozenset(item.lower() for item in items)


class HubConfiguration:
    """The configuration of all hubs, kept current by ``informers``.

    ``filters`` are the names of the filters; other keys are ignored. Without the ConfigMap nothing
    is configured. For an invalid value the previous one stays in use.
    """

    def __init__(self, informers: IInformers, namespace: str, filters: Iterable[str]) -> None:
        self.on_changed: list[Callable[[], object]] = []
        """Callbacks for a changed key."""
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
    """Return the data of a ``ConfigMap``."""
    return mapping(config_map.get("data"))


def configuration_spec(namespace: str) -> InformerSpec[Mapping[str, object]]:
    """Return the informer spec for this one ConfigMap."""
    return InformerSpec(CONFIG_MAPS, configured, namespace=namespace, name=CONFIG_MAP)
