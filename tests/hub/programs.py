"""``twist yurthub`` as a real process, on free ports."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ports import free_ports
from tests.e2e.programs import Program
from tests.hub.cluster import TOKEN
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials


class HubProgram(Program):
    """The hub of ``node`` before API servers with these ``urls``; its files are in ``directory``.

    ``port`` is that of clients on the node, ``secure_port`` that of pods. There is no interface for
    pods, unless ``flags`` say otherwise, which are added last and so replace what is here. It joins
    with :data:`TOKEN`, and needs the ``pin`` for that.
    """

    def __init__(self, reactor, directory: Path, urls, pin, *flags: str, node="edge-1") -> None:
        self.directory = Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port, self.secure_port, meta_port = (free_ports.take() for _ in range(3))
        arguments = [
            "yurthub",
            f"--node-name={node}",
            f"--server-addr={','.join(urls)}",
            f"--root-dir={self.directory / 'root'}",
            f"--disk-cache-path={self.directory / 'cache'}",
            f"--join-token={TOKEN}",
            f"--discovery-token-ca-cert-hash=sha256:{pin}",
            f"--proxy-port={self.port}",
            f"--proxy-secure-port={self.secure_port}",
            f"--serve-port={meta_port}",
            "--enable-dummy-if=false",
            *flags,
        ]
        super().__init__(reactor, arguments, str(self.directory / "hub.log"), meta_port)

    @property
    def url(self) -> str:
        """What clients on the node ask."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, reactor, component: str = "kubelet", token: str = "") -> KubeClient:
        """Make a client on the node; whoever made it closes it."""
        credentials = FileCredentials(token=token)
        configuration = KubeConfiguration(self.url, "default", lambda: b"", credentials)
        return KubeClient(reactor, configuration, program=component)
