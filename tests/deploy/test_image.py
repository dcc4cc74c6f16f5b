"""The container image: its files exist, and it runs as an unprivileged user."""

from __future__ import annotations

import configparser
import re

import yaml
from twisted.trial import unittest

import yurttunnel
from tests.deploy.rendering import BASE, DEPLOY, REPOSITORY

CONTAINERFILE = DEPLOY / "image" / "Containerfile"


def instructions():
    """Yield the instructions of the Containerfile, with continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            yield name, " ".join(arguments.split())


def stages():
    """Return the instructions of each stage, without those before the first ``FROM``."""
    found: list[list[tuple[str, str]]] = []
    for name, arguments in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, arguments))
    return found


def installed(stage):
    """Return the Debian packages that a stage installs."""
    return [
        package
        for name, arguments in stage
        if name == "RUN"
        for packages in re.findall(r"apt-get install -y --no-install-recommends ([^&]+)", arguments)
        for package in packages.split()
    ]


class ContainerfileTests(unittest.SynchronousTestCase):
    """The Containerfile."""

    def setUp(self):
        """Read the file."""
        self.building, self.final = stages()

    def test_it_begins_with_a_slim_debian_whose_python_is_new_enough(self):
        """Both stages use the same slim Debian image with a recent Python."""
        ((name, default),) = [
            arguments.split("=") for kind, arguments in instructions() if kind == "ARG"
        ]
        self.assertIn(default, ("debian:bookworm-slim", "debian:trixie-slim"))
        for stage in (self.building, self.final):
            self.assertEqual(f"${{{name}}}", stage[0][1].split()[0])

    def test_what_it_copies_is_there_and_enough_for_the_package(self):
        """Each copied file exists, and the package's build has all files that it needs."""
        copied = set()
        for name, arguments in self.building:
            if name == "COPY":
                *sources, _ = arguments.split()
                copied.update(sources)
        for source in copied:
            self.assertTrue((REPOSITORY / source).exists(), source)
        setup = configparser.ConfigParser()
        setup.read(REPOSITORY / "setup.cfg")
        needed = {"setup.cfg", "pyproject.toml", "twisted", "yurttunnel"}
        needed.add(setup["metadata"]["license_files"])
        needed.add(setup["metadata"]["long_description"].removeprefix("file: "))
        self.assertEqual(needed, copied)

    def test_the_firewalls_programs_are_in_it_and_no_compiler(self):
        """The image has only the packages for firewall rules and Python; compilers stay behind."""
        self.assertEqual(["iptables", "nftables", "python3"], installed(self.final))
        self.assertIn("gcc", installed(self.building))
        self.assertNotIn("pip", str(self.final))

    def test_nothing_of_ours_imports_what_is_left_out(self):
        """No module imports the test packages and the parts of Twisted that the image removes."""
        (removing,) = [arguments for _, arguments in self.building if "-name test" in arguments]
        self.assertIn("rm -r conch mail words ", removing)
        sources = [*REPOSITORY.glob("yurttunnel/**/*.py"), *REPOSITORY.glob("twisted/**/*.py")]
        for path in sources:
            self.assertEqual(set(), {"test", "tests"} & set(path.relative_to(REPOSITORY).parts))
            self.assertNotRegex(
                path.read_text(),
                r"(?m)^\s*(from|import) ([\w.]*\.tests?|twisted\.(conch|mail|words))\b",
            )

    def test_the_list_of_plugins_is_written_before_the_user_changes(self):
        """``twist`` runs once as root to write its plugin cache, which is read-only later."""
        kinds = [name for name, _ in self.final]
        ((place, _),) = [
            (place, arguments)
            for place, (name, arguments) in enumerate(self.final)
            if name == "RUN" and arguments.startswith("twist --help")
        ]
        self.assertLess(place, kinds.index("USER"))
        self.assertLess(kinds.index("COPY"), place)

    def test_it_runs_twist_as_the_user_of_the_manifests(self):
        """The image runs twist as the numeric user and group of the manifests."""
        final = dict(self.final)
        self.assertEqual('["twist"]', final["ENTRYPOINT"])
        user, group = final["USER"].split(":")
        for name in ("server.yaml", "agent.yaml"):
            workload = next(yaml.safe_load_all((BASE / name).read_text()))
            security = workload["spec"]["template"]["spec"]["securityContext"]
            self.assertEqual(int(user), security["runAsUser"])
            self.assertEqual(int(group), security["runAsGroup"])

    def test_versions_agree(self):
        """Label, image tags of the manifests and package have the same version."""
        version = yurttunnel.__version__
        self.assertIn(f'image.version="{version}"', dict(self.final)["LABEL"])
        for path in DEPLOY.glob("**/kustomization.yaml"):
            for image in yaml.safe_load(path.read_text()).get("images", []):
                self.assertEqual(version, image["newTag"], path)
