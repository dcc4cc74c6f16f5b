"""The commands are found after each kind of installation."""

from __future__ import annotations

import os
import sys

from twisted.internet.defer import Deferred, DeferredList

from tests.e2e.installs import InstallingTestCase, can_build_here
from tests.e2e.programs import ROOT

COMMANDS = {
    "yurttunnel-server": "--standalone",
    "yurttunnel-agent": "--standalone",
    "yurttunnel-quickstart": "--check",
}
"""The commands, each with one of its flags."""


class PluginTests(InstallingTestCase):
    """One environment for each kind of installation."""

    async def commands_found(self, python: str) -> None:
        """Require that ``twist`` has all of them, with their help and the files of the status
        page.
        """
        listed = await self.run_python(python, "-m", "twisted", "--help")
        for command, flag in COMMANDS.items():
            self.assertIn(command, listed)
            shown = await self.run_python(python, "-m", "twisted", command, "--help")
            self.assertIn(flag, shown)
            self.assertNotIn("Traceback", shown)
        # The page reads its style and its script from files beside it.
        script = "import yurttunnel.ops.status.page; print(yurttunnel.__file__)"
        origin = (await self.run_python(python, "-c", script)).strip()
        self.assertFalse(origin.startswith(str(ROOT)), f"{origin} is the checkout")

    async def from_wheel(self) -> None:
        """Build a wheel from a copy of the sources and install it."""
        isolation = ("--no-build-isolation",) if can_build_here() else ()
        wheels = os.path.join(self.directory, "wheels")
        await self.run_python(
            sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet",
            "--no-deps", *isolation, "--wheel-dir", wheels, self.copied_sources("for-wheel"),
        )  # fmt: skip
        (wheel,) = os.listdir(wheels)
        python = self.new_environment("env-wheel")
        await self.install(python, os.path.join(wheels, wheel))
        await self.commands_found(python)

    async def from_sources(self, name: str, *flags: str) -> None:
        """Install a copy of the sources, normally or with ``-e``."""
        python = self.new_environment(f"env-{name}")
        await self.install(python, *flags, self.copied_sources(name))
        await self.commands_found(python)

    async def test_commands_are_found_from_a_wheel_a_plain_and_an_editable_install(self) -> None:
        """``twist --help`` lists every command after each kind of installation."""
        ways = [self.from_wheel(), self.from_sources("plain"), self.from_sources("edited", "-e")]
        # All of them are waited for, also when one fails: a test leaves no process behind.
        results = await DeferredList(
            [Deferred.fromCoroutine(way) for way in ways], consumeErrors=True
        )
        for succeeded, result in results:
            if not succeeded:
                result.raiseException()
