"""Machines with a firewall: one in memory, and network namespaces with the kernel's."""

from __future__ import annotations

import os
import shlex
import shutil

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import run
from tests.steering.firewall.fakes import FakePrograms, FakeTable, play_iptables
from yurttunnel.ops.programs import Programs

BASES = {4: "iptables", 6: "ip6tables"}


class CountedPrograms:
    """Programs whose runs are counted."""

    def __init__(self, programs):
        self._programs = programs
        self.clock = programs.clock
        self.calls = []

    def run(self, arguments, *more):
        """Run a program."""
        self.calls.append(list(arguments))
        return self._programs.run(arguments, *more)


class MemoryMachine:
    """A table in memory, of one family and back end."""

    def __init__(self, version, back_end):
        self.table = FakeTable()
        self.programs = FakePrograms()
        self.prefix = f"{BASES[version]}-{back_end}"
        play_iptables(self.programs, self.prefix, self.table, "(nf_tables)")

    def close(self):
        """Do nothing."""

    def save(self):
        """Return the table's chains and rules."""
        return _bare(self.table.save())

    def restore(self, *lines):
        """Change the table as another program does."""
        self.table.restore("\n".join(["*nat", *lines, "COMMIT", ""]))

    def make_set(self, name):
        """Do nothing: the table does not support sets."""


class RealMachine:
    """A network namespace, and one family and back end of its firewall."""

    def __init__(self, version, back_end):
        self.prefix = f"{BASES[version]}-{back_end}"
        if shutil.which(f"{self.prefix}-restore") is None:
            raise SkipTest(f"{self.prefix} is not installed")
        self._version = version
        self._network = ClusterNetwork()
        self.programs = CountedPrograms(Programs(reactor))

    def close(self):
        """Return to the original namespace."""
        self._network.close()

    def save(self):
        """Return the table's chains and rules."""
        return _bare(run(f"{self.prefix}-save", "-t", "nat"))

    def restore(self, *lines):
        """Change the table as another program does."""
        text = "\n".join(["*nat", *lines, "COMMIT", ""])
        run(f"{self.prefix}-restore", "-w", "20", "--noflush", stdin=text)

    def make_set(self, name):
        """Make an empty set of addresses."""
        family = "inet" if self._version == 4 else "inet6"
        run("ipset", "create", name, "hash:ip", "family", family)

    def iptables(self, command):
        """Run iptables as an administrator."""
        run(self.prefix, "-w", "20", *shlex.split(command))


def use_own_lock(test):
    """Use a separate iptables lock for a test: others may hold the usual one for seconds."""
    path = os.path.abspath(test.mktemp())
    test.patch(os, "environ", {**os.environ, "XTABLES_LOCKFILE": path})
    return path


def _bare(text):
    return [line for line in text.splitlines() if not line.startswith("#")]
