"""The service proxy under test: ``twist yurtproxy``, with a Service in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.ports import free_ports
from benchmarks.tunnel import MetaProgram, twist

_CLUSTER_IP = "10.96.0.10"


class ServiceProxy(MetaProgram):
    """The proxy of one Service with one endpoint, at ``port`` by TCP and UDP.

    Nothing leads there: clients speak to the port itself, as they do to that of nginx.
    """

    def __init__(self, directory: Path, address: str, backend: int, echo: int) -> None:
        self.port = free_ports.take()
        services = directory / "services.json"
        services.write_text(json.dumps(manifest(address, backend, echo)))
        command = [
            sys.executable, *twist("epoll"), "yurtproxy",
            "--hostname-override", "bench",
            "--services-file", str(services),
            "--mode", "user",
            "--proxy-backend", "none",
            "--proxy-port-range", f"{self.port}-{self.port}",
            "--healthz-bind-address", "",
            "--drain-timeout", "1s",
        ]  # fmt: skip
        super().__init__(
            command, directory / "proxy.log", flag="--metrics-bind-address=127.0.0.1:{}"
        )
        try:
            self.wait_until(self.is_ready, "it was ready")
        except BaseException:
            self.stop()
            raise


def manifest(address: str, backend: int, echo: int) -> dict[str, object]:
    """Return a Service and its endpoints, as ``kubectl apply -f`` takes them."""
    name = "bench"
    ports = (("tcp", "TCP", 80, backend), ("udp", "UDP", 80, echo))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": name},
        "spec": {
            "clusterIP": _CLUSTER_IP,
            "clusterIPs": [_CLUSTER_IP],
            "ipFamilies": ["IPv4"],
            "ports": [
                {"name": each, "protocol": protocol, "port": port}
                for each, protocol, port, _ in ports
            ],
        },
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": name,
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [
            {"name": each, "protocol": protocol, "port": port} for each, protocol, _, port in ports
        ],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
    return {"apiVersion": "v1", "kind": "List", "items": [service, endpoints]}
