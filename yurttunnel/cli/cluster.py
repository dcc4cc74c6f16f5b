"""The servers of a cluster, asked through its API with the rights of whoever asks.

``kubectl`` does it: it has the kubeconfig, its contexts, and every way to sign in. A server's meta
port is reached by the API's proxy of pods, and where it listens on the loopback address of its pod,
as in ``deploy/base``, by ``kubectl port-forward``.
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

from yurttunnel.cli.client import MOST_BYTES, SECONDS, CommandFailed, Missing

SELECTOR = "k8s-app=yurt-tunnel-server"
"""The label of the servers' pods in ``deploy/base``."""

_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ")

_LONGEST_LINE = 4096
"""Bytes of what kubectl says when it forwards."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """``kubectl`` with the flags ``given`` that say which cluster is meant, and as whom."""

    given: tuple[str, ...] = ()

    def run(self, *arguments: str) -> bytes:
        """Return what it prints; raises :class:`CommandFailed` with what it says is wrong."""
        command = self.command("--request-timeout=15s", *arguments)
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2 * SECONDS
            )
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"kubectl gave no answer within {2 * SECONDS:g} s") from None
        if ended.returncode:
            said = " ".join(ended.stderr.decode("utf-8", "replace").split())
            raise CommandFailed(f"kubectl: {said or f'status {ended.returncode}'}")
        return ended.stdout

    def command(self, *arguments: str) -> list[str]:
        """Return a command line; raises :class:`CommandFailed` where there is no kubectl."""
        path = shutil.which("kubectl")
        if path is None:
            raise CommandFailed("kubectl is not installed: a cluster is asked by it")
        return [path, *self.given, *arguments]


class Server:
    """A server's pod, ``name``, whose pages are those of its meta port, ``port``."""

    def __init__(self, kubectl: Kubectl, namespace: str, name: str, port: int) -> None:
        self.name = name
        self._meta_port = port
        self._kubectl = kubectl
        self._namespace = namespace

    def get(self, page: str) -> Any:
        """Return what ``page`` has as JSON; raises :class:`CommandFailed`."""
        try:
            return json.loads(self.get_text(page))
        except ValueError:
            raise CommandFailed(
                f"{self.name}: {page} is no JSON: is it of another version?"
            ) from None

    def get_text(self, page: str) -> str:
        """Return what ``page`` has as text, also when it says that the server is not ready."""
        path = (
            f"/api/v1/namespaces/{self._namespace}/pods/{self.name}:{self._meta_port}/proxy{page}"
        )
        try:
            body = self._kubectl.run("get", "--raw", path)
        except CommandFailed:
            # The meta port is not there, or answers with an error, which the proxy keeps to itself.
            body = self._forwarded(page)
        return body.decode("utf-8", "replace")

    def _forwarded(self, page: str) -> bytes:
        with self._port() as port:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            try:
                connection.request("GET", page, headers={"Host": "localhost"})
                response = connection.getresponse()
                body = response.read(MOST_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise CommandFailed(f"{self.name}: its meta port gave no answer: {error}") from None
            finally:
                connection.close()
        if response.status == http.client.NOT_FOUND:
            raise Missing(f"{self.name} has no {page}")
        if response.status not in (http.client.OK, http.client.SERVICE_UNAVAILABLE):
            raise CommandFailed(f"{self.name}: {page} is answered with {response.status}")
        return body

    @contextlib.contextmanager
    def _port(self) -> Iterator[int]:
        """Have kubectl forward a port of this machine, and end that."""
        command = self._kubectl.command(
            *("port-forward", "--namespace", self._namespace, f"pod/{self.name}"),
            *("--address", "127.0.0.1", f":{self._meta_port}"),
        )
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            # Reading has no deadline of its own.
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
            try:
                yield _port_of(self.name, process)
            finally:
                timer.cancel()
                process.kill()


def _port_of(pod: str, process: subprocess.Popen[bytes]) -> int:
    """Return the port once kubectl says it; warnings of it, and of what signs in, come before."""
    why = ""
    while process.stdout is not None and (line := process.stdout.readline(_LONGEST_LINE)):
        match = _FORWARDING.match(line)
        if match is not None:
            return int(match[1])
        why = " ".join(line.decode("utf-8", "replace").split()) or why
    raise CommandFailed(f"{pod} cannot be asked: kubectl port-forward: {why or 'no answer'}")


def servers(kubectl: Kubectl, namespace: str, port: int) -> list[Server]:
    """Return the servers of a cluster that run; raises :class:`CommandFailed` for none.

    ``port`` is their meta port.
    """
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(SELECTOR)}"
    told = kubectl.run("get", "--raw", path)
    try:
        # Go writes an empty list as null.
        pods = json.loads(told)["items"] or ()
        running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        names = sorted(pod["metadata"]["name"] for pod in running)
    except (ValueError, LookupError, TypeError, AttributeError):
        # Something between, such as a page to sign in.
        raise CommandFailed(f"kubectl: what the API gives for {path} is no list of pods") from None
    if not names:
        raise CommandFailed(
            f"no server runs in namespace {namespace} (pods with the label {SELECTOR}): name the"
            " namespace with -n"
        )
    return [Server(kubectl, namespace, name, port) for name in names]
