"""Common parts of the node's tests: waits with a deadline, clients, and containers."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.task import Clock
from zope.interface import implementer

from tests.waiting import until
from yurtlab.api.resources import PODS
from yurtlab.api.store import Store
from yurtlab.node.interfaces import ICommandClient
from yurtlab.node.pods import Pod, PodSettings
from yurtlab.node.processes import Process, Program

PYTHON = sys.executable


class ClockedReactor(Clock):
    """The real reactor for descriptors, with a simulated clock and no network."""

    def __init__(self):
        super().__init__()
        self.connections = []

    def connectTCP(self, host, port, factory, timeout=30, bindAddress=None):
        """Record the address."""
        self.connections.append((host, port))

    def addReader(self, reader):
        """Read."""
        reactor.addReader(reader)

    def removeReader(self, reader):
        """Read no more."""
        reactor.removeReader(reader)

    def addWriter(self, writer):
        """Write."""
        reactor.addWriter(writer)

    def removeWriter(self, writer):
        """Write no more."""
        reactor.removeWriter(writer)

    async def until(self, condition, what="it happens"):
        """Wait for ``condition()``, while the simulated clock stands still."""

        def looked():
            self.advance(0)
            return condition()

        return await until(looked, what)


def program(*arguments, directory="/", stdin=False, terminal=False, **environment):
    """Return a program with a minimal environment."""
    variables = {"PATH": os.environ["PATH"], **environment}
    return Program(arguments, variables, str(directory), stdin, terminal)


class Ran:
    """A process and its output."""

    def __init__(self, what, on=reactor, exited=lambda pid: None):
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.exit = None
        self.process = Process(on, what, self._output, self._ended, exited)

    def _output(self, stream, data):
        getattr(self, stream).extend(data)

    def _ended(self, end):
        self.exit = end

    async def ended(self):
        """Wait for its end and return its exit code."""
        await until(lambda: self.exit is not None, "the process has ended")
        return self.exit.code

    async def wait_for_output(self, text):
        """Wait until its standard output has ``text``."""
        await until(lambda: text in self.stdout, f"{text!r} is written: {bytes(self.stdout)!r}")


@implementer(ICommandClient)
class FakeClient:
    """A client of exec or attach that records what it receives."""

    def __init__(self):
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.status = None
        self.source = None
        self.stdin_paused = False

    def write(self, stream, data):
        """Record output."""
        assert self.status is None
        getattr(self, stream).extend(data)

    def register_output(self, producer):
        """Record the producer."""
        self.source = producer

    def pauseProducing(self):
        """Record the call."""
        self.stdin_paused = True

    def resumeProducing(self):
        """Record the call."""
        self.stdin_paused = False

    stopProducing = resumeProducing

    def finish(self, status):
        """Record the status."""
        assert self.status is None
        self.status = status

    async def finished(self):
        """Wait for the status and return it."""
        return await until(lambda: self.status, "the client is told how it ended")

    async def wait_for_output(self, text):
        """Wait until the output contains ``text``."""
        await until(lambda: text in self.stdout, f"{text!r} comes: {bytes(self.stdout)!r}")


def descriptors():
    """Return the open descriptors by number."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:
            continue  # It was that of the directory itself.
    return found


def is_running(pid):
    """Whether a process runs; zombies do not."""
    try:
        return _state(pid) != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        # The latter where it has gone between the opening of the file and its reading.
        return False


def is_stopped(pid):
    """Whether a signal has stopped a process."""
    return _state(pid) == b"T"


def _state(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0]


class World:
    """A store, and pods on a node without its service."""

    def __init__(self, test, on=None):
        self.test = test
        self.reactor = on or ClockedReactor()
        self.store = Store(self.reactor)
        self.directory = Path(test.mktemp()).absolute()
        self.run = uuid.uuid4().hex
        self.removed = []

    def pod(self, *containers, name="web", start=True, settled=True, **spec):
        """Create a pod in the store and on the node."""
        body = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": "edge-1", "containers": list(containers), **spec},
            "status": {"phase": "Pending", "qosClass": "BestEffort"},
        }
        created = self.store.create(PODS, "default", body)
        settings = PodSettings("192.0.2.7", self.directory, self.run)
        pod = Pod(self.reactor, self.store, settings, created, self.removed.append)
        self.test.addCleanup(self.end, pod)
        if start:
            pod.start()
            self.reactor.advance(0)
        return pod

    async def end(self, pod):
        """Kill the remaining processes of a pod."""
        pod.forget()
        await self.reactor.until(lambda: pod in self.removed, "the pod is removed")

    def stored(self, name="web"):
        """The pod in the store."""
        return self.store.get(PODS, "default", name)

    def status(self, name="web"):
        """Its status."""
        return self.stored(name)["status"]

    async def until_phase(self, phase, name="web"):
        """Wait for a phase, and return the status."""
        await self.reactor.until(
            lambda: self.status(name)["phase"] == phase, f"the phase is {phase}"
        )
        return self.status(name)

    async def until_state(self, state, index=0, name="web"):
        """Wait for a state of a container, and return it."""

        def its():
            found = self.status(name).get("containerStatuses")
            return found and found[index]["state"].get(state)

        return await self.reactor.until(its, f"the container is {state}")


def container(script=None, name="main", **given):
    """A container that runs a shell script."""
    made = {"name": name, "image": "none", **given}
    if script is not None:
        made["command"] = ["sh", "-c", script]
    return made
