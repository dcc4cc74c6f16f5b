"""A real kube-apiserver, if ``KUBEBUILDER_ASSETS`` has one (the convention of envtest)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from twisted.internet.task import deferLater

from benchmarks.ports import free_ports
from tests.e2e.programs import ProgramFailed

READY_SECONDS = 60.0
STOP_SECONDS = 20.0


def assets() -> Path | None:
    """Return the directory of ``etcd`` and ``kube-apiserver``, if there is one."""
    directory = os.environ.get("KUBEBUILDER_ASSETS")
    return None if not directory else Path(directory)


class Process:
    """A program that runs until it is stopped, and whose log is stored."""

    def __init__(self, reactor, log: Path, *command: str) -> None:
        self._reactor = reactor
        self._log = log
        self._command = command
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the program."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def accepts(self, is_ready) -> None:
        """Wait until ``is_ready()``, which may raise ``OSError``, is true."""
        deadline = self._reactor.seconds() + READY_SECONDS
        while self._reactor.seconds() < deadline:
            if self._process.poll() is not None:
                break
            if await is_ready():
                return
            await deferLater(self._reactor, 0.1)
        end = self._log.read_text("utf-8", "replace")[-4000:]
        raise ProgramFailed(f"{self._command[0]} is not ready:\n{end}")

    async def stop(self) -> None:
        """Stop the program, and wait for its end."""
        if self._process is None:
            return
        self._process.terminate()
        deadline = self._reactor.seconds() + STOP_SECONDS
        while self._process.poll() is None:
            if self._reactor.seconds() > deadline:
                self._process.kill()
                self._process.wait()
                return
            await deferLater(self._reactor, 0.05)


class RealAPI:
    """``etcd`` and ``kube-apiserver`` on ``address``; nodes are reached through ``socket_path``.

    ``pki`` has ``ca.crt``, ``api.crt`` and ``api.key``, ``kubelet-client.crt`` and
    ``kubelet-client.key``, and for tokens of service accounts ``accounts.key`` (in the form of
    SEC 1: it does not read PKCS #8 there) and ``accounts.pub``.
    """

    def __init__(self, reactor, directory: Path, pki: Path, address: str, socket_path: str):
        self._reactor = reactor
        binaries = assets()
        etcd_port, peer_port, self.port = (free_ports.take() for _ in range(3))
        etcd = f"http://{address}:{etcd_port}"
        peer = f"http://{address}:{peer_port}"
        selector = directory / "egress-selector.json"
        selector.write_text(json.dumps(_egress_selector(socket_path)))
        self._etcd_address = address, etcd_port
        self._etcd = Process(
            reactor, directory / "etcd.log", str(binaries / "etcd"),
            "--data-dir", str(directory / "etcd"),
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self._server = Process(
            reactor, directory / "kube-apiserver.log", str(binaries / "kube-apiserver"),
            "--etcd-servers", etcd,
            "--bind-address", address, "--advertise-address", address,
            "--secure-port", str(self.port),
            "--tls-cert-file", str(pki / "api.crt"), "--tls-private-key-file", str(pki / "api.key"),
            "--client-ca-file", str(pki / "ca.crt"),
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", str(pki / "accounts.pub"),
            "--service-account-signing-key-file", str(pki / "accounts.key"),
            "--service-cluster-ip-range", "10.96.0.0/16",
            "--authorization-mode", "Node,RBAC",
            # No controller creates the default service accounts of namespaces.
            "--disable-admission-plugins", "ServiceAccount",
            "--kubelet-client-certificate", str(pki / "kubelet-client.crt"),
            "--kubelet-client-key", str(pki / "kubelet-client.key"),
            "--kubelet-preferred-address-types", "InternalIP",
            "--egress-selector-config-file", str(selector),
            "--allow-privileged",
        )  # fmt: skip

    async def start(self, is_ready) -> None:
        """Start both; ``is_ready()`` sends a request to the API."""
        self._etcd.start()
        self._server.start()
        await self._server.accepts(is_ready)

    def rotate(self, credentials, caller) -> None:
        """Do nothing: kube-apiserver reloads its files itself.

        The certificate for kubelets stays, since with a new one it would close all connections to
        them (k8s.io/client-go, transport/cert_rotation.go).
        """

    async def stop(self) -> None:
        """Stop both."""
        await self._server.stop()
        await self._etcd.stop()


def _egress_selector(socket_path: str) -> dict:
    """Return an EgressSelectorConfiguration of apiserver.k8s.io/v1beta1."""
    connection = {
        "proxyProtocol": "HTTPConnect",
        "transport": {"uds": {"udsName": socket_path}},
    }
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }
