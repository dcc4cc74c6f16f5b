"""Network namespaces without names, which end with whoever uses them.

A named one would be global to the machine, and stay there when a test is killed. One without a
name lives as long as a descriptor of it, a socket in it or a process in it. ``ip`` takes it by the
path of the descriptor.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twisted.trial.unittest import SkipTest

CLONE_NEWNET = 0x40000000
"""Of sched.h; ``os.setns`` is there from Python 3.12 on only."""

RUN_SECONDS = 30.0
"""How long a program may take that sets something up."""

_LOOK_SECONDS = 0.01

_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace: a new one, or with ``current`` that of this thread.

    A socket belongs to the namespace of the thread that makes it, and a process to that of the
    thread that forks it. So a block in :meth:`inside` suffices to have something listen, connect
    or start there; what it has made stays there. There must be no ``await`` in it.
    """

    def __init__(self, *, current: bool = False) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root can make a network namespace")
        if current:
            self._descriptor = _of_this_thread()
            return
        former = _of_this_thread()
        try:
            _check(_libc.unshare(CLONE_NEWNET))
            self._descriptor = _of_this_thread()
        finally:
            enter(former)
            os.close(former)

    @property
    def path(self) -> str:
        """By what other processes find it as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def enter(self) -> None:
        """Have this thread, and all programs that it starts, live there from now on."""
        enter(self._descriptor)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have this thread live there for the time of a block."""
        former = _of_this_thread()
        self.enter()
        try:
            yield
        finally:
            enter(former)
            os.close(former)

    def run(self, *command: str, stdin: str = "") -> str:
        """Run a program there, which must succeed soon; what it prints."""
        with self.inside():
            return run(*command, stdin=stdin)

    def close(self) -> None:
        """Let it go; it ends when nothing lives there any more."""
        os.close(self._descriptor)


def new_namespace() -> Namespace:
    """Make a machine that has nothing but its loopback interface."""
    machine = Namespace()
    with machine.inside():
        # An address can be used at once, without asking whether somebody else has it.
        Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")
    machine.run("ip", "link", "set", "lo", "up")
    return machine


def forward() -> None:
    """Have this machine pass on what is for others."""
    for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", setting).write_text("1")


def run(*command: str, stdin: str = "") -> str:
    """Run a program, which must succeed soon; what it prints."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def wait_for_ipv6() -> None:
    """Wait until all addresses of IPv6 here can be used.

    The kernel makes their routes a moment after ``ip`` has added them (addrconf_dad_work), and
    tells nobody but by netlink.
    """
    for _ in range(round(RUN_SECONDS / _LOOK_SECONDS)):
        shown = run("ip", "-6", "-oneline", "address", "show", "up")
        routes = run("ip", "-6", "route", "show", "table", "local").split()
        addresses = [line.split()[3].partition("/")[0] for line in shown.splitlines()]
        if "tentative" not in shown and set(addresses) <= set(routes):
            return
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"addresses cannot be used after {RUN_SECONDS:g} s: {shown}")


def _of_this_thread() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def enter(descriptor: int) -> None:
    """Have this thread live in a namespace from now on; only root can, where it is another one."""
    own = _of_this_thread()
    try:
        if not os.path.sameopenfile(descriptor, own):
            _check(_libc.setns(descriptor, CLONE_NEWNET))
    finally:
        os.close(own)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
