"""The command line of the quickstart."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.quickstart import options
from yurttunnel.quickstart.options import DEFAULT_PORT, PORT_COUNT, Options, Ports


def parse(*arguments):
    """Return the settings of a command line."""
    return Options().settings_of(*arguments)


class OptionsTests(SynchronousTestCase):
    """The flags and their errors."""

    def setUp(self):
        """Treat only the ports in ``self.in_use`` as in use."""
        self.in_use = set()
        self.patch(options, "_is_in_use", self.in_use.__contains__)
        self.patch(options, "_reserve", lambda first: True)

    def test_defaults(self):
        """Without flags the default ports and a temporary directory are used."""
        settings = parse()
        self.assertIsNone(settings.state_dir)
        self.assertEqual(settings.ports, Ports.from_first(DEFAULT_PORT))
        self.assertEqual(settings.node_name, "edge-1")
        self.assertIsNone(settings.server_address)
        self.assertFalse(settings.firewall)
        self.assertFalse(settings.check)

    def test_usual_ports(self):
        """Server, agent, hub and proxy have their default ports."""
        ports = Ports.from_first(DEFAULT_PORT)
        theirs = (ports.agents, ports.secure, ports.insecure, ports.server_meta, ports.agent_meta)
        self.assertEqual(theirs, (10262, 10263, 10264, 10265, 10266))
        self.assertEqual((ports.hub, ports.hub_meta, ports.hub_secure), (10261, 10267, 10268))
        self.assertEqual((ports.api, ports.kubelet, ports.proxy_meta), (10260, 10269, 10270))

    def test_next_row_of_ports(self):
        """If a default port is in use, another range of ports is chosen."""
        self.in_use.add(DEFAULT_PORT + PORT_COUNT - 1)
        first = parse().ports.api
        self.assertNotEqual(first, DEFAULT_PORT)
        self.assertEqual(first % 1000, DEFAULT_PORT % 1000)

    def test_row_of_another_quickstart(self):
        """A range that another quickstart has reserved is skipped, even before it listens."""
        self.patch(options, "_reserve", lambda first: first != DEFAULT_PORT)
        self.assertNotEqual(parse().ports.api, DEFAULT_PORT)

    def test_no_row_of_ports(self):
        """If all ranges are in use, the error names the flag."""
        self.patch(options, "_is_in_use", lambda port: True)
        error = self.assertRaises(usage.UsageError, parse)
        self.assertIn("--port", str(error))

    def test_requested_port_is_in_use(self):
        """If a requested range is in use, the error names the port."""
        self.in_use.add(20003)
        error = self.assertRaises(usage.UsageError, parse, "--port", "20000")
        self.assertIn("20003", str(error))

    def test_ports_beyond_the_last(self):
        """A requested range that exceeds port 65535 is rejected."""
        error = self.assertRaises(usage.UsageError, parse, "--port", "65530")
        self.assertIn("--port", str(error))

    def test_flags(self):
        """Each flag sets its setting."""
        settings = parse(
            *("--check", "--port", "20000", "--state-dir", "here", "--node-name", "shop-7"),
            *("--tunnelserver-addr", "127.0.0.1:4444"),
        )
        self.assertTrue(settings.check)
        self.assertEqual(settings.ports.api, 20000)
        self.assertEqual(settings.state_dir, Path("here").absolute())
        self.assertEqual(settings.node_name, "shop-7")
        self.assertEqual(settings.server_address, "127.0.0.1:4444")

    def test_firewall(self):
        """--firewall is rejected unless the user is root."""
        self.patch(os, "geteuid", lambda: 0)
        self.assertTrue(parse("--firewall").firewall)
        self.patch(os, "geteuid", lambda: 1000)
        error = self.assertRaises(usage.UsageError, parse, "--firewall")
        self.assertIn("--firewall: only root changes the firewall", str(error))

    def test_refusals(self):
        """An error for an invalid value names the flag."""
        for flag, value in (
            ("--node-name", "No Node"),
            ("--tunnelserver-addr", "nowhere"),
            ("--port", "many"),
        ):
            error = self.assertRaises(usage.UsageError, parse, flag, value)
            self.assertIn(flag, str(error))


class ReserveTests(SynchronousTestCase):
    """Reservation of a range of ports."""

    def test_reserved(self):
        """A range can be reserved once, until its reservation is released."""
        self.patch(options, "_reservations", reservations := [])
        first = 1_000_000 + os.getpid()
        self.assertTrue(options._reserve(first))
        self.assertFalse(options._reserve(first))
        self.assertTrue(options._reserve(first + 1_000_000))
        for name in reservations:
            name.close()
        self.assertTrue(options._reserve(first))
        reservations[-1].close()


class PortsInUseTests(SynchronousTestCase):
    """Detection of ports in use."""

    def test_port_in_use(self):
        """A port is in use while a socket listens on it."""
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        self.assertEqual(Ports.from_first(port).first_in_use(), port)
        listener.close()
        self.assertNotEqual(Ports.from_first(port).first_in_use(), port)


class CommandTests(SynchronousTestCase):
    """The command without optional packages."""

    def test_without_its_packages(self):
        """The command and its check name the package to install; the help needs none."""
        for name in ("kubernetes", "wsproto"):
            code = (
                f"import sys; sys.modules[{name!r}] = None\n"
                "from yurttunnel.quickstart.command import Options, makeService\n"
                "options = Options()\n"
                "options.parseOptions(['--check'])\n"
                "makeService(options)"
            )
            ended = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(1, ended.returncode)
            self.assertIn(name, ended.stderr)
            self.assertIn("pip install 'yurttunnel[quickstart]'", ended.stderr)
            self.assertNotIn("Traceback", ended.stderr)

    def test_signals_of_a_start(self):
        """While the parts are built, a signal to stop waits for the reactor, which cleans up."""
        code = (
            "import signal\n"
            "from yurttunnel.quickstart import command, composition\n"
            "composition.build = lambda *built: [\n"
            "    signal.getsignal(number).__name__ for number in (signal.SIGINT, signal.SIGTERM)\n"
            "]\n"
            "options = command.Options()\n"
            "options.parseOptions([])\n"
            "print(*command.makeService(options))"
        )
        built = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(("sigInt sigTerm\n", ""), (built.stdout, built.stderr))
