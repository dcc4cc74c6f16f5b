"""Starts programs without the wait for their modules: a process that has loaded them forks.

Half of what the tests of whole programs take of the processors is the import of the same modules,
for each start anew. Here they are imported once. Each program is a process of its own all the
same, with its own arguments, environment, directory, log and network namespace, and goes from
``__main__`` to the end of the interpreter as with ``python -m``; only ``/proc/PID/cmdline`` tells.
What a start imports and takes is for tests whose programs begin with another one, such as ``env``.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress

from tests.e2e.network.namespaces import enter
from tests.garbage import collect_as_usual

_REQUEST_BYTES = 1 << 17
"""The longest request: arguments and environment."""

_DESCRIPTORS = 3
"""Of a request: the program's log and namespace, and where its id and its end are told."""

_NUMBER = struct.Struct("i")


class Forked:
    """A program that the fork server has started; as a ``subprocess.Popen``."""

    def __init__(self, arguments: list[str], news: int) -> None:
        self.pid = _read_number(news)
        self.returncode: int | None = None
        self._arguments = arguments
        self._news = news

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or ``None`` while it runs."""
        return self._look(0)

    def wait(self, timeout: float) -> int:
        """Wait until it has ended; return the exit status."""
        if self._look(timeout) is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout)
        return self.returncode

    def _look(self, seconds: float) -> int | None:
        if self.returncode is None and _is_readable(self._news, seconds):
            self.returncode = _read_number(self._news)
            os.close(self._news)
        return self.returncode


class ForkServer:
    """The process that forks, and ends with this one.

    It is no child of this one, as tests wait for theirs.
    """

    def __init__(self) -> None:
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            subprocess.run(
                [sys.executable, "-m", __name__, str(other.fileno())],
                check=True,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )

    def start(
        self, arguments: list[str], log: int, directory: str, environment: dict[str, str]
    ) -> Forked:
        """Start ``python -m`` with these arguments, in the network namespace of this thread."""
        request = json.dumps([arguments, directory, environment]).encode()
        news, told = os.pipe()
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            socket.send_fds(self._connection, [request], [log, namespace, told])
        finally:
            os.close(namespace)
            os.close(told)
        return Forked(arguments, news)


@functools.cache
def fork_server() -> ForkServer:
    """Return the one of this process."""
    return ForkServer()


def _is_readable(descriptor: int, seconds: float) -> bool:
    # select(2) takes none beyond 1,023.
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def _read_number(descriptor: int) -> int:
    told = os.read(descriptor, _NUMBER.size)
    if not told:
        raise ChildProcessError("the fork server has ended; why is in its standard error")
    number: int = _NUMBER.unpack(told)[0]
    return number


# -- In the fork server ----------------------------------------------------------------------------


def _load() -> None:
    """Import what programs import, before and after their start."""
    for name in ("twisted.application.twist._twist", "twisted.internet.epollreactor"):
        importlib.import_module(name)
    package = importlib.import_module("yurttunnel")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # Each program has the reactor of its own.
    assert "twisted.internet.reactor" not in sys.modules
    collect_as_usual()
    gc.collect()
    gc.freeze()


def _serve(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """Fork for each request; return it in the new process, and ``None`` at the end of the tests."""
    children: dict[int, tuple[int, int]] = {}
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor != connection.fileno():
                waiting.unregister(descriptor)
                _tell_end(descriptor, *children.pop(descriptor))
                continue
            request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _DESCRIPTORS)
            if not request:
                return None
            pid = os.fork()
            if pid == 0:
                return request, descriptors
            log, namespace, told = descriptors
            os.close(log)
            os.close(namespace)
            os.write(told, _NUMBER.pack(pid))
            ended = os.pidfd_open(pid)
            children[ended] = (pid, told)
            waiting.register(ended, select.POLLIN)


def _tell_end(ended: int, pid: int, told: int) -> None:
    os.close(ended)
    _, status = os.waitpid(pid, 0)
    # Nobody may be there any more to hear of it.
    with suppress(BrokenPipeError):
        os.write(told, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os.close(told)


def _become(request: bytes, descriptors: list[int]) -> None:
    """Be the program of a request, until its end."""
    arguments, directory, environment = json.loads(request)
    log, namespace, _ = descriptors
    enter(namespace)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    # As the interpreter does it for -m.
    sys.path[0] = os.getcwd()
    # In place: twist has it as a default.
    sys.argv[:] = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if os.fork() != 0:
        os._exit(0)
    # Ctrl-C ends the tests, which end this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(*asked)
