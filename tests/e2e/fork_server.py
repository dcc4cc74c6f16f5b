"""Starts programs by forking a process that has imported their modules.

Half of the processor time of tests of whole programs would be the import of the same modules at
each start. Here they are imported once. Each program still is a process of its own, with its own
arguments, environment, directory, log and network namespace, and runs from ``__main__`` to the end
of the interpreter as with ``python -m``; only ``/proc/PID/cmdline`` differs. Tests of the start
itself, of its imports and its cost, put another program such as ``env`` in front.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
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
import time
import warnings
from contextlib import suppress
from types import ModuleType

from tests.e2e.network.namespaces import enter
from tests.garbage import collect_as_usual
from tests.watchdog import SECONDS_ELSEWHERE

_REQUEST_BYTES = 1 << 17
"""The maximum length of a request: arguments and environment."""

_DESCRIPTORS = 4
"""The number in a request: standard output and error, the network namespace, and a pipe for id and
exit status."""

_NUMBER = struct.Struct("i")

_END = struct.Struct("id")
"""Exit status and CPU seconds."""

_seconds_of_ended: list[float] = []
SECONDS_ELSEWHERE.append(lambda: sum(_seconds_of_ended))


class Forked:
    """A program that the fork server has started, with two methods of ``subprocess.Popen``."""

    def __init__(self, arguments: list[str], news: int) -> None:
        (self.pid,) = _read(news, _NUMBER)
        self.returncode: int | None = None
        self._arguments = arguments
        self._news = news

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or ``None`` while it runs."""
        return self._poll(0)

    def wait(self, timeout: float) -> int:
        """Wait for its end; return the exit status."""
        if self._poll(timeout) is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout)
        return self.returncode

    def _poll(self, seconds: float) -> int | None:
        if self.returncode is None and _is_readable(self._news, seconds):
            self.returncode, seconds = _read(self._news, _END)
            os.close(self._news)
            _seconds_of_ended.append(seconds)
        return self.returncode


class ForkServer:
    """The forking process, which ends with this one and the forks of this one that share it.

    It is not a child of this one, because tests wait for their children.
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

    def fileno(self) -> int:
        """Return the descriptor that a fork of this process needs."""
        return self._connection.fileno()

    def start(
        self,
        arguments: list[str],
        output: int,
        errors: int,
        directory: str,
        environment: dict[str, str],
    ) -> Forked:
        """Start ``python -m`` with these arguments, in the network namespace of this thread."""
        request = json.dumps([arguments, directory, environment]).encode()
        news, told = os.pipe()
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            socket.send_fds(self._connection, [request], [output, errors, namespace, told])
        finally:
            os.close(namespace)
            os.close(told)
        return Forked(arguments, news)


@functools.cache
def fork_server() -> ForkServer:
    """Return the fork server of this process."""
    return ForkServer()


def _is_readable(descriptor: int, seconds: float) -> bool:
    # select(2) supports descriptors up to 1,023.
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def _read(descriptor: int, kind: struct.Struct) -> tuple:
    told = os.read(descriptor, kind.size)
    if not told:
        raise ChildProcessError("the fork server has ended; why is in its standard error")
    return kind.unpack(told)


# -- In the fork server ----------------------------------------------------------------------------


def _load() -> None:
    """Import the modules that programs import, at their start and later."""
    for name in ("twisted.application.twist._twist", "twisted.internet.epollreactor"):
        importlib.import_module(name)
    package = importlib.import_module("yurttunnel")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # Each program installs its own reactor.
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
                _report_end(descriptor, *children.pop(descriptor))
                continue
            request, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _DESCRIPTORS)
            if not request:
                return None
            pid = os.fork()
            if pid == 0:
                return request, descriptors
            *others, told = descriptors
            for descriptor in others:
                os.close(descriptor)
            # The reader may have ended.
            with suppress(BrokenPipeError):
                os.write(told, _NUMBER.pack(pid))
            ended = os.pidfd_open(pid)
            children[ended] = (pid, told)
            waiting.register(ended, select.POLLIN)


def _report_end(ended: int, pid: int, told: int) -> None:
    os.close(ended)
    _, status, used = os.wait4(pid, 0)
    # The reader may have ended.
    with suppress(BrokenPipeError):
        seconds = used.ru_utime + used.ru_stime
        os.write(told, _END.pack(os.waitstatus_to_exitcode(status), seconds))
    os.close(told)


def _become(request: bytes, descriptors: list[int]) -> None:
    """Run the program of a request, until its end."""
    arguments, directory, environment = json.loads(request)
    output, errors, namespace, _ = descriptors
    enter(namespace)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    # The interpreter and libc have read these variables at the server's start.
    time.tzset()
    if action := environment.get("PYTHONWARNINGS"):
        warnings.simplefilter(action)
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    # As the interpreter does for -m.
    sys.path[0] = os.getcwd()
    # In place, because twist uses the list as a default.
    sys.argv[:] = arguments
    atexit.register(_spare_modules, sys.modules.copy())
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _spare_modules(shared: dict[str, ModuleType]) -> None:
    """Keep the interpreter, at its end, from clearing the modules that the fork server imported.

    That would take 50 ms, most of the CPU time of a command. What the program has made is deleted,
    with the warnings about it, except what only those modules refer to. The reactor is not among
    that: a package refers to it as to any module that the program has imported.
    """
    for name in sys.modules.keys() - shared:
        package, _, attribute = name.rpartition(".")
        if package in shared:
            vars(shared[package]).pop(attribute, None)
    for name in shared:
        sys.modules.pop(name, None)
    # For ever, as the dictionary itself is released before the interpreter's end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))


if __name__ == "__main__":
    if os.fork() != 0:
        os._exit(0)
    os.dup2(2, 1)
    # Ctrl-C ends the tests, which end this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(*asked)
