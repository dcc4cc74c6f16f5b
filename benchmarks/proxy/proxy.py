"""The service proxy under test: ``twist yurtproxy``, with a Service in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ports import free_ports
from benchmarks.tunnel import MetaProgram, twist

CLUSTER_IP, PORT = "10.96.0.10", 80
"""The address of the Service, for TCP and UDP."""


class _Proxy(MetaProgram):
    """A proxy of one Service with endpoints at ``addresses``; ``flags`` select its mode."""

    def __init__(
        self,
        directory: Path,
        name: str,
        addresses: Sequence[str],
        backend: int,
        echo: int,
        flags: Sequence[str],
    ) -> None:
        services = directory / f"{name}.json"
        services.write_text(json.dumps(manifest(addresses, backend, echo)))
        command = [
            sys.executable, *twist("epoll"), "yurtproxy",
            "--hostname-override", "bench",
            "--services-file", str(services),
            "--healthz-bind-address", "",
            "--drain-timeout", "1s",
            *flags,
        ]  # fmt: skip
        super().__init__(
            command, directory / f"{name}.log", flag="--metrics-bind-address=127.0.0.1:{}"
        )

    def wait_until_ready(self) -> None:
        """Wait in its network namespace until it is ready; stop it if that fails."""
        try:
            self.wait_until(self.is_ready, "it was ready")
        except BaseException:
            self.stop()
            raise


class ServiceProxy(_Proxy):
    """User mode on ``port`` of the address ``bound``, by default of all addresses.

    No rules redirect to it: clients connect to the port itself, as to that of nginx. Endpoints may
    be loopback addresses if ``bound`` is one.
    """

    def __init__(
        self,
        directory: Path,
        addresses: Sequence[str],
        backend: int,
        echo: int,
        bound: str = "0.0.0.0",
    ) -> None:
        self.port = free_ports.take()
        own = ("--proxy-port-range", f"{self.port}-{self.port}", "--bind-address", bound)
        flags = ("--mode", "user", "--proxy-backend", "none", *own)
        super().__init__(directory, f"proxy-{self.port}", addresses, backend, echo, flags)
        self.wait_until_ready()


class KernelProxy(_Proxy):
    """Kernel mode, with :data:`CLUSTER_IP`, in the network namespace of the calling thread."""

    def __init__(self, directory: Path, addresses: Sequence[str], backend: int, echo: int) -> None:
        super().__init__(directory, "kernel", addresses, backend, echo, ("--mode", "kernel"))


def manifest(addresses: Sequence[str], backend: int, echo: int) -> dict[str, object]:
    """Return a Service and its endpoints as a manifest for ``kubectl apply -f``."""
    name = "bench"
    ports = (("tcp", "TCP", PORT, backend), ("udp", "UDP", PORT, echo))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": name},
        "spec": {
            "clusterIP": CLUSTER_IP,
            "clusterIPs": [CLUSTER_IP],
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
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True}} for address in addresses
        ],
    }
    return {"apiVersion": "v1", "kind": "List", "items": [service, endpoints]}
