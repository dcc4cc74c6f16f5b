"""The ports of the internal Service, which callers that ask for a node by name come to.

Each port that is to lead to the server has an entry with the number that callers ask for and the
server's own port behind it. Entries that are added are called ``dnat-<port>``, and entries with
such names are removed when they are no longer wanted: as yurttunnel 1.2 did it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.cluster.proxy_ports import Ports
from yurttunnel.kube.resources import Object
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT, KUBELET_READ_ONLY_PORT

PREFIX = "dnat-"
"""What the names of entries begin with that are added and removed here."""

_PROTOCOL = "TCP"


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """Where the server listens: for HTTPS, for HTTP, and for what it passes through.

    ``passthrough`` is ``None`` without ``--passthrough-port``; ``passthrough_ports`` are those
    that lead there.
    """

    secure: int
    insecure: int
    passthrough: int | None = None
    passthrough_ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """Which port leads to which port of the server.

    There has to be an entry for each of ``desired``. Entries for ``kubelet`` may be left out of the
    Service, which has them from the manifests; where they are, they lead to the right port.
    """

    desired: Mapping[int, int]
    kubelet: Mapping[int, int]


def service_ports(configured: Ports, server: ServerPorts) -> ServicePorts:
    """Return what is to be, by the ConfigMap of ports and the flags."""
    desired = dict.fromkeys(configured.http, server.insecure)
    desired |= dict.fromkeys(configured.https, server.secure)
    if server.passthrough is not None:
        desired |= dict.fromkeys(server.passthrough_ports, server.passthrough)
    kubelet = {KUBELET_PORT: server.secure, KUBELET_READ_ONLY_PORT: server.insecure}
    return ServicePorts(desired, {port: kubelet[port] for port in kubelet.keys() - desired.keys()})


def with_ports(service: Object, ports: ServicePorts) -> Object | None:
    """Make what the Service has to become, ``None`` when it is so already.

    Nothing but ``spec.ports`` differs.
    """
    spec = mapping(service.get("spec"))
    old = list(objects(spec.get("ports")))
    new = reconciled(old, ports)
    return None if new == old else {**service, "spec": {**spec, "ports": new}}


def reconciled(entries: Iterable[Mapping[str, object]], ports: ServicePorts) -> list[Object]:
    """Return the entries that there have to be (``ServicePort`` of k8s.io/api core/v1).

    Those that stay keep their order and everything but a wrong ``targetPort``; others are added
    behind them, by their numbers. A name that begins with :data:`PREFIX` always has the number of
    its own port behind that, so that no two are called the same.
    """
    targets = {**ports.kubelet, **ports.desired}
    kept = list(_kept(entries, targets))
    present = {_key(entry) for entry in kept}
    missing = sorted(port for port in ports.desired if (_PROTOCOL, port) not in present)
    return [*kept, *(_added(port, ports.desired[port]) for port in missing)]


def _kept(entries: Iterable[Mapping[str, object]], targets: Mapping[int, int]) -> Iterator[Object]:
    for entry in entries:
        is_ours = text(entry.get("name")).startswith(PREFIX)
        protocol, port = _key(entry)
        if protocol == _PROTOCOL and port in targets:
            name = {"name": f"{PREFIX}{port}"} if is_ours else {}
            yield {**entry, **name, "targetPort": targets[port]}
        elif not is_ours:
            yield dict(entry)


def _key(entry: Mapping[str, object]) -> tuple[str, int]:
    port = entry.get("port")
    return text(entry.get("protocol")) or _PROTOCOL, port if isinstance(port, int) else 0


def _added(port: int, target: int) -> Object:
    return {"name": f"{PREFIX}{port}", "protocol": _PROTOCOL, "port": port, "targetPort": target}
