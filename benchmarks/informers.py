"""The cost of a large cluster for a server: reactor lag during the initial lists, and memory.

Run it with ``python -m benchmarks.informers``. It starts a server in cluster mode twice with the
embedded API, which is first empty, and then has 1,000 nodes and 20,000 pods of 5 to 6 KB. The lag
is that of a timer, so other load on the machine counts too: trust it only if the server has hardly
waited for a CPU.
"""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react
from twisted.internet.threads import deferToThread

from benchmarks.ports import free_ports
from benchmarks.processes import STOP_SECONDS, BenchmarkFailed, resident
from tests.apiserver.api import ClusterAPI
from tests.e2e.cluster import large_cluster
from yurtlab.api.resources import NODES, PODS
from yurtlab.api.store import Store
from yurttunnel.http.server import HTTPFactory
from yurttunnel.quickstart.composition import HTTP_SETTINGS
from yurttunnel.quickstart.trust import QuickstartTrust
from yurttunnel.quickstart.tunneled_nodes import TunneledNodes
from yurttunnel.tunnel import tls

CALM_SECONDS = 3.0
"""The time from the last list until memory is measured."""
MAX_SECONDS = 120.0
"""The maximum time of a start."""
INCOMPLETE = "has not told all yet"
"""A part of the body of ``/readyz`` while lists are missing."""


@dataclass
class Stats:
    """The figures of one start, in seconds and bytes."""

    seconds: float
    lag: float
    waited: float
    memory: int


async def main(reactor: Any) -> None:
    """Measure, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="yurttunnel-") as name:
        directory = Path(name)
        store, kubeconfig = _start_api(reactor, directory)
        empty = await _measure(reactor, directory / "empty", kubeconfig)
        _fill(store)
        full = await _measure(reactor, directory / "full", kubeconfig)
    growth = (full.memory - empty.memory) / large_cluster.PODS
    for what, stats in (("empty", empty), ("full", full)):
        print(
            f"{what:6} caches complete after {stats.seconds:.1f} s, longest lag"
            f" {stats.lag * 1000:.0f} ms, waited {stats.waited:.2f} s for a CPU,"
            f" resident {stats.memory / 2**20:.1f} MiB"
        )
    print(f"{growth:.0f} bytes of resident memory per pod, with all nodes")


def _start_api(reactor: Any, directory: Path) -> tuple[Store, Path]:
    """Serve an empty API until the process ends; return its store and a kubeconfig."""
    port = free_ports.take()
    trust = QuickstartTrust(reactor, directory / "authority", "nobody")
    store = Store(reactor)
    nodes = TunneledNodes(reactor, trust.api_to_tunnel, list)
    api = ClusterAPI(reactor, store, nodes.connections)
    factory = HTTPFactory(reactor, api, HTTP_SETTINGS)
    reactor.listenTCP(port, tls.server_side(reactor, trust.api, factory), interface="127.0.0.1")
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_bytes(trust.kubeconfig(port))
    return store, kubeconfig


def _fill(store: Store) -> None:
    for number in range(large_cluster.NODES):
        store.create(NODES, None, large_cluster.node(number))
    for number in range(large_cluster.PODS):
        pod = large_cluster.pod(number)
        store.create(PODS, pod["metadata"]["namespace"], pod)


async def _measure(reactor: Any, directory: Path, kubeconfig: Path) -> Stats:
    directory.mkdir()
    with _server(directory, kubeconfig) as (process, meta_port):
        began = reactor.seconds()
        while not await _is_complete(meta_port):
            if process.poll() is not None or reactor.seconds() - began > MAX_SECONDS:
                end = (directory / "server.log").read_text("utf-8", "replace")[-2000:]
                raise BenchmarkFailed(f"the caches are not complete; the log ends:\n{end}")
            await deferLater(reactor, 0.1)
        seconds = reactor.seconds() - began
        # The longest lag of the last minute; a start takes less than a minute.
        _, metrics = await _get(meta_port, "/metrics")
        found = re.search(r"(?m)^yurttunnel_server_reactor_lag_seconds (\S+)$", metrics)
        if found is None:
            raise BenchmarkFailed("the server does not tell the lag of its reactor")
        waited = _waited(process.pid)
        await deferLater(reactor, CALM_SECONDS)
        return Stats(seconds, float(found[1]), waited, resident(process.pid))


def _waited(pid: int) -> float:
    """Return the seconds for which a process has waited for a CPU (Linux, schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def _server(
    directory: Path, kubeconfig: Path
) -> Generator[tuple[subprocess.Popen[bytes], int], None, None]:
    """Run a server; yield its process and its meta port."""
    agent_port, secure_port, insecure_port, meta_port = (free_ports.take() for _ in range(4))
    command = [
        sys.executable, "-m", "twisted", "yurttunnel-server",
        "--kube-config", str(kubeconfig),
        "--cert-dir", str(directory / "pki"),
        "--bind-address", "127.0.0.1",
        "--tunnel-agent-connect-port", str(agent_port),
        "--secure-port", str(secure_port),
        "--insecure-port", str(insecure_port),
        "--meta-port", str(meta_port),
        "--drain-timeout", "1",
    ]  # fmt: skip
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory
        )
    try:
        yield process, meta_port
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _is_complete(meta_port: int) -> bool:
    try:
        _, answer = await _get(meta_port, "/readyz")
    except OSError:
        return False
    return INCOMPLETE not in answer


def _get(meta_port: int, path: str) -> Deferred[tuple[int, str]]:
    """Fetch a page; fails with ``OSError``."""

    def get() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", meta_port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    return deferToThread(get)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
