"""A network whose kernel redirects connections."""

from __future__ import annotations

import shutil
import subprocess

from twisted.trial.unittest import SkipTest

from tests.e2e.cluster.network import ClusterNetwork

REDIRECTED = 10250
"""Connections of this machine to this port, at any address, are redirected to this machine
(``REDIRECT``)."""

TRANSLATED = 10251
"""Connections of this machine to this port, at any address, are sent to loopback (``DNAT``)."""

# The source addresses of this machine's connections; loopback addresses do not work.
_OWN = {4: "198.51.100.1", 6: "2001:db8:1::1"}


def redirecting_network(test, listener):
    """Create a network for the rest of ``test``, which redirects connections to the port
    ``listener``.
    """
    if shutil.which("iptables") is None or shutil.which("ip6tables") is None:
        raise SkipTest("iptables is not installed")
    network = ClusterNetwork(_OWN.values())
    test.addCleanup(network.close)
    for program, loopback in (("iptables", "127.0.0.1"), ("ip6tables", "[::1]")):
        version = "-6" if program == "ip6tables" else "-4"
        _run("ip", version, "route", "add", "default", "dev", "lo")
        rules = {
            REDIRECTED: ("REDIRECT", "--to-ports", str(listener)),
            TRANSLATED: ("DNAT", "--to-destination", f"{loopback}:{listener}"),
        }
        for port, rule in rules.items():
            chosen = ("-t", "nat", "-A", "OUTPUT", "-p", "tcp", "--dport", str(port))
            _run(program, "-w", "5", *chosen, "-j", *rule)


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SkipTest(f"{' '.join(command)} does not work here: {done.stderr.strip()}")
