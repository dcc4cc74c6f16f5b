"""The check: everything that a cluster's users do with a node, tried once through the tunnel.

It is a program of its own, ``python -m yurttunnel.quickstart.check KUBECONFIG HUB PROXY SERVICES``,
because the client of the ``kubernetes`` package blocks. The exit status is 0 only if all steps
succeed. It requests changes to the API and the node from the quickstart
(:mod:`yurttunnel.quickstart.check_requests`).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kubernetes import client, config
from kubernetes.stream import portforward, stream

from yurttunnel.ops.status.formatting import counted
from yurttunnel.quickstart import check_requests
from yurttunnel.quickstart.assertions import (
    NAMESPACE,
    STEP_SECONDS,
    CheckFailed,
    echo,
    poll_until,
    require,
)
from yurttunnel.quickstart.called_service import CalledService

CP_BYTES = 8 * 1024 * 1024
ECHO_BYTES = 256 * 1024

# The program of the pod: it echoes TCP connections and lines of its standard input.
_PROGRAM = """
import socket, sys, threading

def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)

def accept(listener):
    while True:
        threading.Thread(target=echo, args=listener.accept()[:1], daemon=True).start()

listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept, args=(listener,), daemon=True).start()
print("listening on port", listener.getsockname()[1], flush=True)
for line in sys.stdin:
    print("heard", line, end="", flush=True)
threading.Event().wait()
"""

_UNPACK = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
    # A Python before 3.11.4 has no filters.
    archive.extractall(".", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
"""

_PACK = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    archive.add(sys.argv[1])
"""


class Check:
    """The steps, each of which returns a short description of its result.

    ``api`` is the core API of a cluster with one node behind the tunnel, ``hub`` the same as the
    node sees it, and ``service`` calls a Service on the node. ``send(*words)`` requests a change
    from the quickstart, and waits for it.
    """

    def __init__(
        self,
        api: client.CoreV1Api,
        hub: client.CoreV1Api,
        service: CalledService,
        send: Callable[..., None],
    ) -> None:
        self._api = api
        self._hub = hub
        self._service = service
        self._send = send
        self._pod = f"check-{os.urandom(3).hex()}"
        self._node = ""
        self._port = 0

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        """Return the steps by name, in order: the first creates the pod that others use."""
        return [
            ("run", self.run),
            ("logs", self.logs),
            ("exec", self.execute),
            ("attach", self.attach),
            ("port-forward", self.forward_port),
            ("cp", self.copy),
            ("metrics", self.scrape),
            ("service", self.call_service),
            ("autonomy", self.survive_outage),
            ("delete", self.delete),
        ]

    def run(self) -> str:
        """Create a pod and wait until it runs."""
        container = client.V1Container(
            name="main", image="none", command=[sys.executable, "-u", "-c", _PROGRAM], stdin=True
        )
        body = client.V1Pod(
            metadata=client.V1ObjectMeta(name=self._pod),
            spec=client.V1PodSpec(containers=[container], termination_grace_period_seconds=1),
        )
        self._api.create_namespaced_pod(NAMESPACE, body, _request_timeout=STEP_SECONDS)
        self._node = poll_until(self._node_that_runs_it, "the pod runs")
        return f"pod {self._pod} on node {self._node}"

    def logs(self) -> str:
        """Read the output of the pod's process."""
        printed = poll_until(self._first_line, "the pod has printed its port")
        self._port = int(printed[1])
        return repr(printed[0])

    def execute(self) -> str:
        """Run a shell: input, both outputs and the exit code must arrive."""
        script = "read word; echo out $word; echo err $word >&2; exit 42"
        with self._execute("sh", "-c", script) as shell:
            shell.write_stdin(b"hello\n")
            shell.run_forever(timeout=STEP_SECONDS)
            seen = (shell.read_stdout(), shell.read_stderr(), shell.returncode)
        require(seen, (b"out hello\n", b"err hello\n", 42), "standard output, error, exit code")
        return "input, output, error output, exit code 42"

    def attach(self) -> str:
        """Attach to the pod's own process."""
        with self._stream(self._api.connect_get_namespaced_pod_attach) as attached:
            attached.write_stdin(b"knock knock\n")
            answer = attached.readline_stdout(timeout=STEP_SECONDS)
        require(answer, b"heard knock knock", "the answer of the process")
        return repr(answer.decode())

    def forward_port(self) -> str:
        """Send data to a port of the pod, and receive it back."""
        forwarded = portforward(
            self._api.connect_get_namespaced_pod_portforward,
            self._pod,
            NAMESPACE,
            ports=str(self._port),
        )
        sent = os.urandom(ECHO_BYTES)
        connection = forwarded.socket(self._port)
        connection.settimeout(STEP_SECONDS)
        received = echo(connection, sent)
        connection.close()
        require(_sha256(received), _sha256(sent), "the SHA-256 of what came back")
        return f"{ECHO_BYTES // 1024} KiB there and back, SHA-256 equal"

    def copy(self) -> str:
        """Copy a file into the pod and back, as ``kubectl cp`` does: an archive through exec."""
        content = os.urandom(CP_BYTES)
        self._upload("check.bin", content)
        returned = self._download("check.bin")
        require(_sha256(returned), _sha256(content), "the SHA-256 of the file")
        return f"{CP_BYTES // 1024 // 1024} MiB there and back, SHA-256 equal"

    def scrape(self) -> str:
        """Read the node's metrics, as Prometheus does."""
        text = self._api.connect_get_node_proxy_with_path(
            self._node, "metrics", _request_timeout=STEP_SECONDS
        )
        samples = [line for line in text.splitlines() if line and not line.startswith("#")]
        if not samples:
            raise CheckFailed("the node's metrics are empty")
        return f"{len(samples)} samples of {self._node}"

    def call_service(self) -> str:
        """Call the pod through a Service: the node's proxy selects it from the endpoints."""
        pod: Any = self._api.read_namespaced_pod(
            self._pod, NAMESPACE, _request_timeout=STEP_SECONDS
        )
        return self._service.call(self._pod, pod.status.pod_ip, self._port)

    def survive_outage(self) -> str:
        """Stop the API: the node still reads, even after a reboot, and its events arrive later."""
        if not self._node:
            raise CheckFailed("no pod is running")
        before = self._events()
        self._send(check_requests.STOP_API)
        try:
            self._read_as_the_node()
            self._send(check_requests.REBOOT_NODE, NAMESPACE, self._pod)
            self._read_as_the_node()
        finally:
            self._send(check_requests.START_API)
        arrived = poll_until(
            lambda: self._events() - before, "the events of the outage have arrived"
        )
        return (
            f"{self._pod} restarted without the API, {counted(len(arrived), 'event')} arrived later"
        )

    def _read_as_the_node(self) -> None:
        pods = self._hub.list_pod_for_all_namespaces(
            field_selector=f"spec.nodeName={self._node}", _request_timeout=STEP_SECONDS
        )
        require(self._pod in {_name(pod) for pod in pods.items}, True, "the node's pods")
        node = self._hub.read_node(self._node, _request_timeout=STEP_SECONDS)
        require(_name(node), self._node, "the node's name")

    def _events(self) -> set[str]:
        events = self._api.list_namespaced_event(
            NAMESPACE,
            field_selector=f"involvedObject.name={self._pod}",
            _request_timeout=STEP_SECONDS,
        )
        return {_name(event) for event in events.items}

    def delete(self) -> str:
        """Delete the pod and wait until it is gone."""
        self._api.delete_namespaced_pod(self._pod, NAMESPACE, _request_timeout=STEP_SECONDS)
        poll_until(self._pod_is_gone, "the pod is gone")
        return f"pod {self._pod}"

    def _node_that_runs_it(self) -> str | None:
        pod = self._api.read_namespaced_pod(self._pod, NAMESPACE, _request_timeout=STEP_SECONDS)
        running = pod.status is not None and pod.status.phase == "Running"
        return pod.spec.node_name if running and pod.spec is not None else None

    def _pod_is_gone(self) -> bool:
        try:
            self._api.read_namespaced_pod(self._pod, NAMESPACE, _request_timeout=STEP_SECONDS)
        except client.ApiException as error:
            if error.status == 404:
                return True
            raise
        return False

    def _first_line(self) -> re.Match[str] | None:
        text = self._api.read_namespaced_pod_log(
            self._pod, NAMESPACE, _request_timeout=STEP_SECONDS
        )
        return re.match(r"listening on port (\d+)", text)

    def _execute(self, *command: str) -> AbstractContextManager[Any]:
        """Run a command in the pod."""
        return self._stream(self._api.connect_get_namespaced_pod_exec, command=list(command))

    @contextmanager
    def _stream(self, connect: Callable[..., Any], **given: Any) -> Iterator[Any]:
        streams = stream(
            connect,
            self._pod,
            NAMESPACE,
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            binary=True,
            _preload_content=False,
            _request_timeout=STEP_SECONDS,
            **given,
        )
        try:
            yield streams
        finally:
            if streams.is_open():
                streams.close()
            # The server has closed it; close() would wait for that again.
            streams.sock.shutdown()

    def _upload(self, name: str, content: bytes) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        data = memoryview(packed.getvalue())
        with self._execute(sys.executable, "-c", _UNPACK) as unpacking:
            for start in range(0, len(data), 65536):
                unpacking.write_stdin(bytes(data[start : start + 65536]))
            unpacking.run_forever(timeout=STEP_SECONDS)
            require(unpacking.returncode, 0, f"the exit code, after {unpacking.read_stderr()!r}")

    def _download(self, name: str) -> bytes:
        with self._execute(sys.executable, "-c", _PACK, name) as packing:
            packing.run_forever(timeout=STEP_SECONDS)
            require(packing.returncode, 0, f"the exit code, after {packing.read_stderr()!r}")
            packed = packing.read_stdout()
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            file = archive.extractfile(name)
            return b"" if file is None else file.read()


def _name(found: Any) -> str:
    name: str = found.metadata.name
    return name


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or repr(error)


def main(kubeconfig: str, hub: str, proxy: str, services: str) -> int:
    """Run all steps, print a line for each, and return the exit status.

    ``services`` is where Services are called: ``addresses`` or, without rules, ``ports``.
    """
    # The client writes the keys to files, which it does not remove if this process is killed.
    config.load_kube_config(kubeconfig, temp_file_path=os.path.dirname(kubeconfig))
    with client.ApiClient() as connections, client.ApiClient(_without_credentials(hub)) as node:
        # These requests are the node's.
        node.user_agent = "kubelet/check"
        api, discovery = client.CoreV1Api(connections), client.DiscoveryV1Api(connections)
        service = CalledService(api, discovery, proxy, services == "addresses")
        check = Check(api, client.CoreV1Api(node), service, check_requests.send)
        status = _try_all(check.steps())
        for each in (connections, node):
            each.rest_client.pool_manager.clear()
        return status


def _without_credentials(hub: str) -> client.Configuration:
    configuration = client.Configuration()
    configuration.host = hub
    return configuration


def _try_all(steps: list[tuple[str, Callable[[], str]]]) -> int:
    failed = 0
    for name, step in steps:
        begun = time.monotonic()
        try:
            seen = step()
        except Exception as error:
            # Whatever the error, it is reported, and the other steps run.
            failed += 1
            print(f"FAIL  {name:<13} {time.monotonic() - begun:7.3f} s  {_one_line(error)}")
        else:
            print(f"ok    {name:<13} {time.monotonic() - begun:7.3f} s  {seen}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    # If the reader of the output ends, as head(1), SIGPIPE ends this process silently.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Ctrl-C reaches the quickstart, too, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(*sys.argv[1:]))
