"""The records of all nodes in the format of a hosts file, as in yurttunnel 1.2."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from yurttunnel.cluster.fields import mapping, text
from yurttunnel.cluster.nodes import Node
from yurttunnel.http.authority import Address, parse_address
from yurttunnel.kube.resources import Object

CONFIG_MAP = "yurt-tunnel-nodes"
"""The ConfigMap with the records, for a DNS server that mounts it."""

KEY = "tunnel-nodes"
"""The key of the records in the ConfigMap."""

MAX_BYTES = 1024 * 1024
"""The maximum total size of the values of a ConfigMap (``MaxSecretSize`` of k8s.io/api core/v1)."""

_PREFERRED = ("InternalIP", "ExternalIP")


class TooManyRecords(Exception):
    """The records do not fit into a ConfigMap; the text has their size, and how to fix it."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records to publish as ``text``, and their number, ``count``.

    ``problems`` are sentences about nodes that are left out.
    """

    text: str
    count: int
    problems: tuple[str, ...] = ()


def make_records(nodes: Iterable[Node], tunnel: Address) -> Records:
    """Return one record for each node: ``tunnel`` for those behind the tunnel, else its own
    address.

    Its own address is the first ``InternalIP``, or else the first ``ExternalIP``. A node behind the
    tunnel needs no address.
    """
    lines, problems = [], []
    at_tunnel = str(tunnel)
    for node in nodes:
        address = at_tunnel if node.edge else _own_address(node)
        if address is None:
            problems.append(
                f"node {node.name} has no InternalIP and no ExternalIP, so it has no DNS record"
                " until its kubelet or the cloud controller reports one"
            )
        else:
            lines.append(f"{address}\t{node.name}")
    return Records("\n".join(sorted(lines)), len(lines), tuple(sorted(problems)))


def _own_address(node: Node) -> str | None:
    for desired in _PREFERRED:
        for kind, address in node.addresses:
            if kind == desired and (parsed := parse_address(address)) is not None:
                return str(parsed)
    return None


def with_records(config_map: Object | None, namespace: str, records: str) -> Object | None:
    """Return the updated ConfigMap, ``None`` if it is up to date.

    ``config_map`` is ``None`` if it does not exist. Its other content stays. Raises
    :class:`TooManyRecords`.
    """
    old = {"metadata": {"name": CONFIG_MAP, "namespace": namespace}} | (config_map or {})
    data = mapping(old.get("data"))
    if config_map is not None and data.get(KEY) == records:
        return None
    others = [text(value) for key, value in data.items() if key != KEY]
    # Base64 has four characters for three bytes; the padding does not matter here.
    binary = sum(len(text(value)) * 3 // 4 for value in mapping(old.get("binaryData")).values())
    _check_size(records, sum(len(value.encode()) for value in others) + binary)
    return {**old, "data": {**data, KEY: records}}


def _check_size(records: str, others: int) -> None:
    size = len(records.encode())
    if size + others > MAX_BYTES:
        beside = f" beside {others} bytes under other keys" if others else ""
        raise TooManyRecords(
            f"the DNS records are {size} bytes{beside}, and the limit of a ConfigMap is"
            f" {MAX_BYTES}: its content is not changed; steer callers to the server with"
            " --enable-iptables instead"
        )


def limit_sentences(problems: Collection[str], max_count: int) -> list[str]:
    """Return the first ``max_count`` sentences, and one with the number of the others."""
    shown = list(problems)[:max_count]
    more = len(problems) - len(shown)
    return [*shown, f"and {more} more nodes have no DNS record"] if more else shown
