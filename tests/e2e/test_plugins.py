"""The commands are found however the package has been installed."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SkipTest

from tests.e2e.programs import ROOT
from tests.e2e.support import EndToEndTestCase

COMMANDS = {
    "yurttunnel-server": "--standalone",
    "yurttunnel-agent": "--standalone",
    "yurttunnel-quickstart": "--check",
}
"""The commands, each with one of its flags."""

SOURCES = (
    "setup.cfg",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "yurttunnel",
    "yurtlab",
    "twisted",
)
NEEDED_SETUPTOOLS = 77


def can_build_here() -> bool:
    """Whether this environment has a setuptools that reads our metadata."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return False
    return int(version.split(".")[0]) >= NEEDED_SETUPTOOLS


class PluginTests(EndToEndTestCase):
    """One environment for each way to install, side by side.

    The environments are new and have only our package; the packages it needs come from the
    environment of the tests by a path file, which is written after the installation.
    """

    timeout = 170

    async def run_python(
        self, python: str, *arguments: str, check: bool = True, packages: str = ""
    ) -> str:
        """Run an interpreter away from the checkout; its output, standard error included.

        ``packages`` is a directory with further packages for it.
        """
        environment = {**os.environ, "PYTHONPATH": packages}
        output, errors, status = await getProcessOutputAndValue(
            python, arguments, env=environment, path=self.directory, reactor=reactor
        )
        text = (output + errors).decode()
        if check:
            self.assertEqual(status, 0, f"{arguments}\n{text}")
        return text

    def copied_sources(self, name: str) -> str:
        """Copy what a build needs, since builds write beside it."""
        copy = os.path.join(self.directory, name)
        os.mkdir(copy)
        for source in SOURCES:
            path = ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "dropin.cache")
                shutil.copytree(path, os.path.join(copy, source), ignore=ignored)
            elif path.exists():
                shutil.copy(path, copy)
        return copy

    def new_environment(self, name: str) -> str:
        """Make an environment without pip; the path of its interpreter."""
        path = os.path.join(self.directory, name)
        venv.create(path, with_pip=False, symlinks=True)
        return os.path.join(path, "bin", "python")

    def build_tools(self) -> str:
        """Make a directory with links to setuptools, for environments that have none."""
        directory = tempfile.mkdtemp(dir=self.directory)
        tools = importlib.metadata.distribution("setuptools")
        for name in {file.parts[0] for file in tools.files or ()} - {".."}:
            os.symlink(str(tools.locate_file(name)), os.path.join(directory, name))
        return directory

    async def install(self, python: str, *what: str) -> None:
        """Install with the tests' pip into another environment, then add what it needs."""
        isolation, packages = (), ""
        if can_build_here():
            isolation, packages = ("--no-build-isolation",), self.build_tools()
        text = await self.run_python(
            sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check",
            "install", "--quiet", "--no-deps", *isolation, *what, check=False, packages=packages,
        )  # fmt: skip
        if "Could not find a version that satisfies the requirement setuptools" in text:
            raise SkipTest("setuptools, with which to build, cannot be had here")
        self.assertNotIn("ERROR", text)
        script = "import sysconfig; print(sysconfig.get_path('purelib'))"
        directory = (await self.run_python(python, "-c", script)).strip()
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        Path(directory, "zz-needed.pth").write_text("\n".join(sorted(paths)) + "\n")

    async def commands_found(self, python: str) -> None:
        """Require that ``twist`` has them all, with their help and the files of the status page."""
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
        """Install a copy of the sources, plainly or with ``-e``."""
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
