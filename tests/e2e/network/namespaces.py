"""Network namespaces without names as machines, and links between them.

A named network namespace would be visible to the whole machine, and remain after a killed test. A
namespace without a name exists as long as a descriptor of it, a socket in it or a process in it.
``ip`` finds it by the path of the descriptor.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from twisted.trial.unittest import SkipTest

CLONE_NEWNET = 0x40000000
"""Of sched.h; ``os.setns`` requires Python 3.12."""

RUN_SECONDS = 60.0
"""The timeout of a program that sets something up."""

_POLL_SECONDS = 0.01

_SIOCSIFFLAGS, _IFF_UP, _IFREQ = 0x8914, 0x1, struct.Struct("16sh22x")
"""Of netdevice(7)."""

_IFA_F_TENTATIVE, _RTF_LOCAL = 0x40, 0x80000000
"""Of if_addr.h and ipv6_route.h, in the tables in /proc/net."""

_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A machine that has only its loopback interface, or with ``current`` that of this thread.

    A socket belongs to the namespace of the thread that makes it, and a process to that of the
    thread that forks it. So a block in :meth:`inside` suffices to listen, connect or start a
    program there; what it has made stays there. There must be no ``await`` in it.
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
            # IPv6 addresses can be used at once: their duplicates are not detected.
            Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", _IFF_UP))
        finally:
            enter(former)
            os.close(former)

    @property
    def path(self) -> str:
        """The path at which other processes find it while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def enter(self) -> None:
        """Move this thread, and the programs that it starts from now on, to this namespace."""
        enter(self._descriptor)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run a block in this namespace."""
        former = _of_this_thread()
        self.enter()
        try:
            yield
        finally:
            enter(former)
            os.close(former)

    def run(self, *command: str, stdin: str = "") -> str:
        """Run a program there, as :func:`run` does."""
        with self.inside():
            return run(*command, stdin=stdin)

    def link(self, name: str, other: Namespace, other_name: str) -> None:
        """Create a link to another machine, and set both of its ends up."""
        self._add_link(name, other, other_name)
        other.set_up(other_name)

    def _add_link(self, name: str, other: Namespace, other_name: str, *options: str) -> None:
        peer = ("peer", "name", other_name, "netns", other.path)
        self.run("ip", "link", "add", "name", name, *options, "up", "type", "veth", *peer)

    def set_up(self, link: str, *addresses: str, gateways: Iterable[str] = ()) -> None:
        """Set a link up, with these addresses of networks, and default routes by ``gateways``.

        The first address of a family is the source of the machine's packets.
        """
        lines = [f"link set dev {link} up"]
        for address in addresses:
            bits = 64 if ":" in address else 24
            lines.append(f"address add {address}/{bits} dev {link}")
        lines += [f"route add default via {gateway}" for gateway in gateways]
        self.run("ip", "-batch", "-", stdin="\n".join(lines))

    def add_switch(self, *addresses: str) -> None:
        """Create the bridge ``switch``, with these addresses of the machine itself."""
        self.run("ip", "link", "add", "name", "switch", "up", "type", "bridge")
        if addresses:
            self.set_up("switch", *addresses)

    def plug(self, port: str, machine: Namespace, link: str) -> None:
        """Link another machine, which has to set its end up, to a port of the bridge."""
        self._add_link(port, machine, link, "master", "switch")

    def forward(self) -> None:
        """Forward packets to other machines."""
        with self.inside():
            for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
                Path("/proc/sys/net", setting).write_text("1")

    def close(self) -> None:
        """Release it; it ends when nothing uses it any more."""
        os.close(self._descriptor)


class Machines:
    """A network of ``machines`` by name. The thread is on one of them until :meth:`close`."""

    def __init__(self) -> None:
        self._former = Namespace(current=True)
        self.machines: dict[str, Namespace] = {}
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def build(self) -> None:
        """Create the machines and their links, and enter one of them."""
        raise NotImplementedError

    def add_machine(self, name: str) -> Namespace:
        """Add a machine that has only its loopback interface; return it."""
        machine = self.machines[name] = Namespace()
        return machine

    def inside(self, machine: str) -> AbstractContextManager[None]:
        """Run a block on a machine, as :meth:`Namespace.inside` does."""
        return self.machines[machine].inside()

    def run(self, machine: str, *command: str, stdin: str = "") -> str:
        """Run a program on a machine, as :func:`run` does."""
        return self.machines[machine].run(*command, stdin=stdin)

    def close(self) -> None:
        """Return to the original namespace; namespaces in use end with their users."""
        self._former.enter()
        for namespace in (*self.machines.values(), self._former):
            namespace.close()


def run(*command: str | bytes, stdin: str = "") -> str:
    """Run a program, which must succeed soon; return its output.

    The test is skipped if the program is not installed.
    """
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            env=os.environ,
        )
    except FileNotFoundError:
        raise SkipTest(f"{command[0]!r} is not installed") from None
    if done.returncode != 0:
        words = (os.fsdecode(word) for word in command)
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def wait_for_ipv6() -> None:
    """Wait until all IPv6 addresses of the current namespace can be used; their links must be up.

    The kernel makes their routes a moment after ``ip`` has added them (addrconf_dad_work), and
    reports that by netlink only.
    """
    tables = Path("/proc/thread-self/net")
    for _ in range(round(RUN_SECONDS / _POLL_SECONDS)):
        shown = (tables / "if_inet6").read_text()
        addresses = [line.split() for line in shown.splitlines()]
        routes = [line.split() for line in (tables / "ipv6_route").read_text().splitlines()]
        local = {route[0] for route in routes if int(route[8], 16) & _RTF_LOCAL}
        if all(
            address[0] in local and not int(address[4], 16) & _IFA_F_TENTATIVE
            for address in addresses
        ):
            return
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"addresses cannot be used after {RUN_SECONDS:g} s: {shown}")


def _of_this_thread() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def enter(descriptor: int) -> None:
    """Move this thread to a namespace; another one than its own requires root."""
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
