"""The servers of a cluster, reached through its API with the user's own rights.

This uses ``kubectl``, which has the kubeconfig, its contexts, and all authentication methods. A
server's meta port is reached through the API's pod proxy, or, if it listens on the loopback address
of its pod, as in ``deploy/base``, through ``kubectl port-forward``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from yurttunnel.cli.client import MAX_BYTES, SECONDS, CommandFailed, NotFound

SELECTOR = "k8s-app=yurt-tunnel-server"
"""The label of the servers' pods in ``deploy/base``."""

_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ")

_MAX_LINE = 4096
"""The maximum output of ``kubectl port-forward`` in bytes."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``kubectl`` with the ``global_flags`` flags that select the cluster and the user."""

    global_flags: tuple[str, ...] = ()

    def run(self, *arguments: str) -> bytes:
        """Return its output; raise :class:`CommandFailed` with its error message."""
        command = self.command("--request-timeout=15s", *arguments)
        try:
            finished = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2 * SECONDS
            )
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"kubectl did not respond within {2 * SECONDS:g} s") from None
        if finished.returncode:
            message = " ".join(finished.stderr.decode("utf-8", "replace").split())
            raise CommandFailed(f"kubectl: {message or f'status {finished.returncode}'}")
        return finished.stdout

    def command(self, *arguments: str) -> list[str]:
        """Return a command line; raise :class:`CommandFailed` if kubectl is not installed."""
        path = shutil.which("kubectl")
        if path is None:
            raise CommandFailed("kubectl is not installed: it is required to query a cluster")
        return [path, *self.global_flags, *arguments]


class Server:
    """A server's pod, ``name``, with the pages of its meta port, ``port``."""

    def __init__(self, kubectl: Kubectl, namespace: str, name: str, port: int) -> None:
        self.name = name
        self._meta_port = port
        self._kubectl = kubectl
        self._namespace = namespace

    def get(self, page: str) -> Any:
        """Return the JSON of ``page``; raise :class:`CommandFailed`."""
        try:
            return json.loads(self.get_text(page))
        except ValueError:
            raise CommandFailed(
                f"{self.name}: {page} is no JSON: is it of another version?"
            ) from None

    def get_text(self, page: str) -> str:
        """Return the text of ``page``, also if it reports that the server is not ready."""
        path = (
            f"/api/v1/namespaces/{self._namespace}/pods/{self.name}:{self._meta_port}/proxy{page}"
        )
        try:
            body = self._kubectl.run("get", "--raw", path)
        except CommandFailed:
            # The meta port is unreachable, or responds with an error, whose body the proxy hides.
            body = self._get_forwarded(page)
        return body.decode("utf-8", "replace")

    def _get_forwarded(self, page: str) -> bytes:
        with self._forwarded_port() as port:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            try:
                connection.request("GET", page, headers={"Host": "localhost"})
                response = connection.getresponse()
                body = response.read(MAX_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise CommandFailed(
                    f"{self.name}: its meta port did not respond: {error}"
                ) from None
            finally:
                connection.close()
        if response.status == http.client.NOT_FOUND:
            raise NotFound(f"{self.name} has no {page}")
        if response.status not in (http.client.OK, http.client.SERVICE_UNAVAILABLE):
            raise CommandFailed(f"{self.name}: {page} is answered with {response.status}")
        return body

    @contextlib.contextmanager
    def _forwarded_port(self) -> Iterator[int]:
        """Forward a local port with kubectl, until the context ends."""
        command = self._kubectl.command(
            *("port-forward", "--namespace", self._namespace, f"pod/{self.name}"),
            *("--address", "127.0.0.1", f":{self._meta_port}"),
        )
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            # Reading from the pipe has no timeout.
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
            try:
                yield _read_port(self.name, process)
            finally:
                timer.cancel()
                process.kill()


def _read_port(pod: str, process: subprocess.Popen[bytes]) -> int:
    """Return the port once kubectl prints it; its warnings, or those of plugins, come before."""
    why = ""
    while process.stdout is not None and (line := process.stdout.readline(_MAX_LINE)):
        match = _FORWARDING.match(line)
        if match is not None:
            return int(match[1])
        why = " ".join(line.decode("utf-8", "replace").split()) or why
    raise CommandFailed(f"{pod} cannot be queried: kubectl port-forward: {why or 'no answer'}")


def servers(kubectl: Kubectl, namespace: str, port: int) -> list[Server]:
    """Return the running servers of a cluster; raise :class:`CommandFailed` if there are none.

    ``port`` is their meta port.
    """
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(SELECTOR)}"
    response = kubectl.run("get", "--raw", path)
    try:
        # Go encodes an empty list as null.
        pods = json.loads(response)["items"] or ()
        running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        names = sorted(pod["metadata"]["name"] for pod in running)
    except (ValueError, LookupError, TypeError, AttributeError):
        # The response is from an intermediary, such as a login page.
        raise CommandFailed(f"kubectl: what the API gives for {path} is no list of pods") from None
    if not names:
        raise CommandFailed(
            f"no server runs in namespace {namespace} (pods with the label {SELECTOR}): name the"
            " namespace with -n"
        )
    return [Server(kubectl, namespace, name, port) for name in names]
