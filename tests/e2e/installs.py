"""Virtual environments into which the package is installed as users install it."""

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
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SkipTest

from tests.e2e.programs import ROOT
from tests.e2e.support import EndToEndTestCase

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
    """Return whether this environment has a setuptools that supports our metadata."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return False
    return int(version.split(".")[0]) >= NEEDED_SETUPTOOLS


class InstallingTestCase(EndToEndTestCase):
    """A test case that installs the package.

    The environments are new and contain only our package. Its dependencies come from the
    environment of the tests, by a path file that is written after the installation.
    """

    async def run_python(
        self, python: str, *arguments: str, check: bool = True, packages: str = ""
    ) -> str:
        """Run an interpreter outside the checkout; return its output, including standard error.

        ``packages`` is a directory with additional packages.
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
        """Copy the files for a build, because builds write beside them."""
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
        """Create an environment without pip; return the path of its interpreter."""
        path = os.path.join(self.directory, name)
        venv.create(path, with_pip=False, symlinks=True)
        return os.path.join(path, "bin", "python")

    def build_tools(self) -> str:
        """Create a directory with links to setuptools, for environments without it."""
        directory = tempfile.mkdtemp(dir=self.directory)
        tools = importlib.metadata.distribution("setuptools")
        for name in {file.parts[0] for file in tools.files or ()} - {".."}:
            os.symlink(str(tools.locate_file(name)), os.path.join(directory, name))
        return directory

    async def install(self, python: str, *what: str) -> None:
        """Install with the tests' pip into another environment, then add the dependencies."""
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
        await self.add_packages_path(python)

    async def add_packages_path(self, python: str) -> None:
        """Add the packages of the tests to an interpreter's path, after its own."""
        script = "import sysconfig; print(sysconfig.get_path('purelib'))"
        directory = (await self.run_python(python, "-c", script)).strip()
        needed = importlib.metadata.distribution("twisted").locate_file("")
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(needed)}
        Path(directory, "zz-needed.pth").write_text("\n".join(sorted(paths)) + "\n")
