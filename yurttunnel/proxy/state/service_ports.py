"""The ports of a Service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yurttunnel.cluster.fields import objects, text
from yurttunnel.proxy.state.parsing import Problems, Unusable, is_name, port_number, quoted
from yurttunnel.proxy.state.virtual_services import Protocol


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service; ``node_port`` is 0 if there is none."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0


def service_ports(
    service: str, spec: Mapping[str, Any], problems: Problems
) -> Iterator[ServicePort]:
    """Yield the valid ports; of two with the same name or number only the first.

    ``service`` is the name of the Service in problems.
    """
    names, numbers, node_ports = set(), set(), set()
    for each in objects(spec.get("ports")):
        name = text(each.get("name"))
        if name and not is_name(name):
            problems.add(f"{quoted(ascii(name))} is not a valid port name: it is not served")
            continue
        what = f"{service}:{name}" if name else service
        try:
            protocol = _protocol(each)
            port = port_number(each.get("port"))
        except Unusable as error:
            problems.add(f"{error}: it is not served", what)
            continue
        if (protocol, name) in names or (protocol, port) in numbers:
            problems.add(
                f"port {port} has the same name or number as a previous port: it is not served",
                what,
            )
            continue
        names.add((protocol, name))
        numbers.add((protocol, port))
        node_port = _node_port(each, what, problems)
        if (protocol, node_port) in node_ports:
            problems.add(f"nodePort {node_port} is already used by a previous port", what)
            node_port = 0
        if node_port:
            node_ports.add((protocol, node_port))
        yield ServicePort(name, protocol, port, node_port)


def _protocol(port: Mapping[str, Any]) -> Protocol:
    given = port.get("protocol") or "TCP"
    try:
        return Protocol(given)
    except ValueError:
        raise Unusable(f"protocol {quoted(given)} is not supported, TCP and UDP are") from None


def _node_port(port: Mapping[str, Any], what: str, problems: Problems) -> int:
    given = port.get("nodePort") or 0
    try:
        return port_number(given) if given else 0
    except Unusable as error:
        problems.add(f"nodePort {error}: the port is served without a node port", what)
        return 0
