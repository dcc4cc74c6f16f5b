"""The ports of the internal Service, to which callers connect that use node names.

Each port that leads to the server has an entry, with the number that callers use and the server's
own port as its target. Entries that are added are called ``dnat-<port>``, and entries with such
names are removed when they are no longer needed, as in yurttunnel 1.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.cluster.proxy_ports import Ports
from yurttunnel.kube.resources import Object
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT, KUBELET_READ_ONLY_PORT

PREFIX = "dnat-"
"""The prefix of entries that are added and removed here."""

_PROTOCOL = "TCP"


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """The ports on which the server listens for HTTPS, for HTTP, and for pass-through.

    ``passthrough`` is ``None`` without ``--passthrough-port``; ``passthrough_ports`` lead there.
    """

    secure: int
    insecure: int
    passthrough: int | None = None
    passthrough_ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """Which port leads to which port of the server.

    There must be an entry for each port in ``desired``. The Service has the entries in ``kubelet``
    from the manifests and may omit them; if they exist, they must lead to the right port.
    """

    desired: Mapping[int, int]
    kubelet: Mapping[int, int]


def service_ports(configured: Ports, server: ServerPorts) -> ServicePorts:
    """Return the desired ports, according to the ConfigMap of ports and the flags."""
    desired = dict.fromkeys(configured.http, server.insecure)
    desired |= dict.fromkeys(configured.https, server.secure)
    if server.passthrough is not None:
        desired |= dict.fromkeys(server.passthrough_ports, server.passthrough)
    kubelet = {KUBELET_PORT: server.secure, KUBELET_READ_ONLY_PORT: server.insecure}
    return ServicePorts(desired, {port: kubelet[port] for port in kubelet.keys() - desired.keys()})


def with_ports(service: Object, ports: ServicePorts) -> Object | None:
    """Return the updated Service, ``None`` if it is up to date.

    Only ``spec.ports`` differs.
    """
    spec = mapping(service.get("spec"))
    old = list(objects(spec.get("ports")))
    new = reconciled(old, ports)
    return None if new == old else {**service, "spec": {**spec, "ports": new}}


def reconciled(entries: Iterable[Mapping[str, object]], ports: ServicePorts) -> list[Object]:
    """Return the desired entries (``ServicePort`` of k8s.io/api core/v1).

    Those that stay keep their order and everything but a wrong ``targetPort``; new ones are
    appended, sorted by number. A name with the prefix :data:`PREFIX` always ends with the number of
    its own port, so that names are unique.
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
