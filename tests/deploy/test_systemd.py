"""The systemd units: their commands exist, and they are sandboxed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.python.procutils import which
from twisted.trial import unittest

from tests.deploy.rendering import DEPLOY
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.server.endpoints import UnixEndpoint
from yurttunnel.server.options import Options as ServerOptions

UNITS = sorted((DEPLOY / "systemd").glob("yurttunnel-*.service"))
"""The tunnel's units; the hub's is in ``test_hub``."""

END_MARGIN = 15.0
"""The maximum time in seconds that a program needs to end after its drain timeout."""

MAX_EXPOSURE = 2.0
"""The maximum of ``systemd-analyze security``, from 0 to 10; versions differ slightly."""

VARIABLES = {
    "STATE_DIRECTORY": "/var/lib/x",
    "RUNTIME_DIRECTORY": "/run/yurttunnel",
    "CREDENTIALS_DIRECTORY": "/run/credentials/x",
    "SERVER": "203.0.113.10:10262",
}
"""Variables that systemd and settings files set; comments have examples of users' flags."""


def settings_of(path: Path) -> list[tuple[str, str]]:
    """Return the settings of the service in their order, with continuation lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    _, _, service = text.partition("[Service]\n")
    service, _, _ = service.partition("\n[Install]")
    settings = []
    for line in filter(None, service.splitlines()):
        name, _, value = line.partition("=")
        settings.append((name, " ".join(value.split())))
    return settings


def example(path: Path, variable: str) -> str:
    """Return the value of a variable in the comment at the top, or an empty string."""
    match = re.search(rf'^# +(?:Environment=")?{variable}=(.*?)"?$', path.read_text(), re.MULTILINE)
    return match[1] if match else ""


class UnitTests(unittest.SynchronousTestCase):
    """The content of the units."""

    def command_of(self, path: Path) -> list[str]:
        """Return the words of the command, with variables replaced as by systemd."""
        words: list[str] = []
        for word in shlex.split(dict(settings_of(path))["ExecStart"]):
            alone = re.fullmatch(r"\$(\w+)", word)
            if alone:
                # systemd splits the value into words, so the examples are tested as well.
                value = example(path, alone[1]).replace("%d", VARIABLES["CREDENTIALS_DIRECTORY"])
                words += value.split()
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda match: VARIABLES[match[1]], word))
        return words

    def options_of(self, path: Path):
        """Return the program's options for the unit's command."""
        _, command, *flags = self.command_of(path)
        if command == "yurttunnel-server":
            options = ServerOptions()
        else:
            environment = {name: example(path, name) for name in ("NODE_NAME", "NODE_IP")}
            options = AgentOptions(environment)
        options.parseOptions(flags)
        return options

    def test_there_is_one_for_each_end(self):
        """There is a unit for server and agent, each named like its command."""
        self.assertEqual(
            ["yurttunnel-agent.service", "yurttunnel-server.service"], [each.name for each in UNITS]
        )

    def test_the_commands_exist_and_accept_their_flags(self):
        """Every command is a plugin that accepts all flags, including those of examples."""
        commands = {maker.tapname for maker in getPlugins(IServiceMaker)}
        for path in UNITS:
            program, command, *_ = self.command_of(path)
            self.assertTrue(program.endswith("/twist"))
            self.assertIn(command, commands)
            self.assertEqual(path.stem, command)
            settings = self.options_of(path).settings
            # With DynamicUser= the state directory itself is a symbolic link.
            state = f"{VARIABLES['STATE_DIRECTORY']}/state"
            self.assertEqual(state, str(settings.mode.state_dir))

    def test_systemd_notification(self):
        """systemd waits for the readiness of a service, and restarts one that hangs."""
        for path in UNITS:
            settings = dict(settings_of(path))
            self.assertEqual(("notify", "main"), (settings["Type"], settings["NotifyAccess"]))
            # Half of it is the interval of notifications; a reactor may be blocked for seconds.
            self.assertGreaterEqual(int(settings["WatchdogSec"]), 20)
            self.assertEqual("on-failure", settings["Restart"])
            self.assertIn(("Environment", "PYTHONFAULTHANDLER=1"), settings_of(path))

    def test_the_socket_has_its_directory(self):
        """systemd makes the directory of the server's CONNECT socket."""
        path = DEPLOY / "systemd" / "yurttunnel-server.service"
        ((_, endpoint),) = self.options_of(path).settings.connect_endpoints
        self.assertIsInstance(endpoint, UnixEndpoint)
        directory = dict(settings_of(path))["RuntimeDirectory"]
        self.assertEqual(f"/run/{directory}", str(Path(endpoint.path).parent))

    def test_the_command_reaches_the_service_proxy(self):
        """systemd makes the directory of the proxy's admin socket with mode 0700."""
        settings = dict(settings_of(DEPLOY / "systemd" / "yurtproxy.service"))
        self.assertEqual("yurtproxy", settings["RuntimeDirectory"])
        self.assertEqual("0700", settings["RuntimeDirectoryMode"])

    def test_there_is_time_to_drain(self):
        """The stop timeout is longer than the program's drain timeout."""
        for path in UNITS:
            drain = self.options_of(path).settings.drain_timeout
            self.assertLessEqual(
                drain + END_MARGIN, float(dict(settings_of(path))["TimeoutStopSec"])
            )

    def test_nobody_special_runs_it(self):
        """A dynamic user without capabilities runs the program and can write only to its state."""
        for path in UNITS:
            settings = dict(settings_of(path))
            self.assertEqual("yes", settings["DynamicUser"])
            self.assertNotIn("User", settings)
            self.assertEqual("strict", settings["ProtectSystem"])
            self.assertEqual("", settings["CapabilityBoundingSet"])
            self.assertEqual("", settings["AmbientCapabilities"])
            self.assertEqual("yes", settings["NoNewPrivileges"])
            self.assertEqual(("0700", "0077"), (settings["StateDirectoryMode"], settings["UMask"]))
            self.assertEqual(
                {"AF_INET", "AF_INET6", "AF_UNIX"}, set(settings["RestrictAddressFamilies"].split())
            )

    def test_the_server_sees_who_calls(self):
        """The server has no private users, since callers of its socket would appear as nobody."""
        server = DEPLOY / "systemd" / "yurttunnel-server.service"
        self.assertNotIn("PrivateUsers", dict(settings_of(server)))

    def test_what_would_break_the_programs_is_not_forbidden(self):
        """The sandbox permits OpenSSL's generated callbacks, and chown."""
        for path in UNITS:
            self.assertNotIn("MemoryDenyWriteExecute", dict(settings_of(path)))
            calls = [value for name, value in settings_of(path) if name == "SystemCallFilter"]
            self.assertEqual(["@system-service", "~@privileged @resources", "@chown"], calls)


class AnalyzeTests(unittest.SynchronousTestCase):
    """The checks of systemd-analyze."""

    if not which("systemd-analyze"):
        skip = "there is no systemd-analyze: apt-get install systemd"

    def units(self) -> list[Path]:
        """Copy the units with a program that exists."""
        directory = Path(self.mktemp())
        directory.mkdir()
        copies = []
        for path in UNITS:
            copy = directory / path.name
            copy.write_text(path.read_text().replace("/opt/yurttunnel/bin/twist", "/bin/true"))
            copies.append(copy)
        return copies

    def analyze(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run systemd-analyze."""
        return subprocess.run(
            ["systemd-analyze", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def test_units_are_good(self):
        """Every setting and value is valid."""
        for unit in self.units():
            output = self.analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
            self.assertEqual((0, ""), (output.returncode, output.stderr + output.stdout))

    def test_exposure_is_low(self):
        """The exposure rating is low."""
        for unit in self.units():
            output = self.analyze("security", "--offline=true", "--no-pager", str(unit))
            exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", output.stdout)
            if exposure is None:
                raise unittest.SkipTest(
                    f"this systemd-analyze does not rate files: {output.stderr}"
                )
            self.assertLessEqual(float(exposure[1]), MAX_EXPOSURE)
