"""The ports in the ConfigMap ``yurt-tunnel-server-cfg``, with the meaning of yurttunnel 1.2.

=========================  ==================  =================================================
key                        example             meaning
=========================  ==================  =================================================
``localhost-proxy-ports``  ``10266, 10267``    dialed on the loopback address of the node, not
                                               the requested one
``http-proxy-ports``       ``9445, 9100``      connections to these ports of a node are
                                               redirected to the server's insecure port
``https-proxy-ports``      ``9443``            redirected to the secure port
``dnat-ports-pair``        ``9051=10264``      as ``http-proxy-ports``; the right side is the
                                               insecure port. Without any ``=`` it is a list
=========================  ==================  =================================================

A port in several keys is for HTTPS if ``https-proxy-ports`` has it, otherwise for HTTP. The
kubelet's own ports are always redirected to the server, and are ignored here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from twisted.logger import Logger

from yurttunnel.cluster.fields import mapping, text
from yurttunnel.http.authority import BadAuthority, parse_port
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import CONFIG_MAPS, Object
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORTS

CONFIG_MAP = "yurt-tunnel-server-cfg"
LOCALHOST, HTTP, HTTPS, PAIRS = KEYS = (
    "localhost-proxy-ports",
    "http-proxy-ports",
    "https-proxy-ports",
    "dnat-ports-pair",
)

MAX_REPORTED = 10
"""The maximum number of invalid items that are logged individually for one version."""

_MAX_QUOTE = 40

log = Logger()


class RawPorts(NamedTuple):
    """The cached part of the ConfigMap: the values of :data:`KEYS`, and its ``uid`` for events."""

    uid: str
    values: tuple[str, ...]


def raw_ports(config_map: Object) -> RawPorts:
    """Return the cached part of a ``ConfigMap``."""
    data = mapping(config_map.get("data"))
    metadata = mapping(config_map.get("metadata"))
    return RawPorts(text(metadata.get("uid")), tuple(text(data.get(key)) for key in KEYS))


class Ports(NamedTuple):
    """The configured ports; no port is in both ``http`` and ``https``.

    ``problems`` are sentences about items that were ignored.
    """

    localhost: frozenset[int] = frozenset()
    http: frozenset[int] = frozenset()
    https: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()


def parse_ports(raw: RawPorts, insecure_port: int) -> Ports:
    """Parse the values; an invalid item is ignored without an effect on others."""
    values = dict(zip(KEYS, raw.values, strict=True))
    problems: list[str] = []
    localhost = set(_list_of_ports(values, LOCALHOST, problems))
    https = set(_list_of_ports(values, HTTPS, problems)) - KUBELET_PORTS
    http = {
        *_list_of_ports(values, HTTP, problems),
        *_left_of_pairs(values, insecure_port, problems),
    }
    http -= KUBELET_PORTS | https
    return Ports(frozenset(localhost), frozenset(http), frozenset(https), tuple(problems))


def _items(value: str) -> Iterator[str]:
    return (item for each in value.split(",") if (item := each.strip()))


def _list_of_ports(values: dict[str, str], key: str, problems: list[str]) -> Iterator[int]:
    for item in _items(values[key]):
        try:
            yield parse_port(item)
        except BadAuthority as error:
            problems.append(f"{key}: {_truncated(error)}")


def _left_of_pairs(
    values: dict[str, str], insecure_port: int, problems: list[str]
) -> Iterator[int]:
    if "=" not in values[PAIRS]:
        yield from _list_of_ports(values, PAIRS, problems)
        return
    for item in _items(values[PAIRS]):
        left, _, right = (part.strip() for part in item.partition("="))
        try:
            port, target = parse_port(left), parse_port(right)
        except BadAuthority as error:
            problems.append(f"{PAIRS}: {_truncated(error)} (an item is PORT={insecure_port})")
            continue
        if target == insecure_port:
            yield port
        else:
            problems.append(
                f"{PAIRS}: {left}={right} does not lead to --insecure-port {insecure_port}"
            )


def _truncated(error: BadAuthority) -> str:
    """Return the error's text with the quoted item shortened."""
    quoted, separator, rest = str(error).partition(" is ")
    if len(quoted) > _MAX_QUOTE:
        quoted = quoted[:_MAX_QUOTE] + "...'"
    return quoted + separator + rest


class ProxyPorts:
    """The ports, kept up to date by ``informers``; ``ports`` is empty without the ConfigMap.

    ``namespace`` is the server's, ``insecure_port`` its port for HTTP. Each problem is logged once,
    and passed to ``report(config_map, text)`` for an event; ``config_map`` is a reference to the
    object.
    """

    def __init__(
        self,
        informers: IInformers,
        namespace: str,
        insecure_port: int,
        report: Callable[[Object, str], object],
    ) -> None:
        self.ports = Ports()
        self.on_changed: list[Callable[[], object]] = []
        """Callbacks for changes of the ports."""
        self._namespace = namespace
        self._insecure_port = insecure_port
        self._report = report
        self._informer = informers.informer(proxy_ports_spec(namespace))
        self._informer.add_handler(self._changed)

    @property
    def synced(self) -> bool:
        """Whether the ports have been loaded once."""
        return self._informer.synced

    def _changed(self, old: RawPorts | None, new: RawPorts | None) -> None:
        before = self.ports
        self.ports = Ports() if new is None else parse_ports(new, self._insecure_port)
        self._report_problems(set(before.problems), new)
        if self.ports != before:
            for callback in self.on_changed:
                callback()

    def _report_problems(self, reported: set[str], new: RawPorts | None) -> None:
        problems = [each for each in dict.fromkeys(self.ports.problems) if each not in reported]
        if new is None or not problems:
            return
        for problem in problems[:MAX_REPORTED]:
            log.warn(
                "ConfigMap {namespace}/{name}, {problem}; the item is ignored",
                namespace=self._namespace,
                name=CONFIG_MAP,
                problem=problem,
            )
        more = len(problems) - MAX_REPORTED
        if more > 0:
            log.warn(
                "ConfigMap {namespace}/{name}: {more} more items are ignored",
                namespace=self._namespace,
                name=CONFIG_MAP,
                more=more,
            )
        shown = "; ".join(problems[:MAX_REPORTED]) + (f"; and {more} more" if more > 0 else "")
        self._report(self._reference(new), f"items are ignored: {shown}")

    def _reference(self, raw: RawPorts) -> Object:
        metadata = {"namespace": self._namespace, "name": CONFIG_MAP, "uid": raw.uid}
        return CONFIG_MAPS.typed({"metadata": metadata})


def proxy_ports_spec(namespace: str) -> InformerSpec[RawPorts]:
    """Return the specification for the one ConfigMap."""
    return InformerSpec(CONFIG_MAPS, raw_ports, namespace=namespace, name=CONFIG_MAP)
