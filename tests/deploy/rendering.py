"""The manifests as kubectl renders them, and lookups in them."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.kubectl import KUBECTL_GOGC, find_kubectls

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
BASE = DEPLOY / "base"

OLDEST = (1, 21)
"""The oldest kubectl whose Kustomize (4) accepts directories as resources."""

Object = dict[str, Any]


def overlays() -> list[Path]:
    """Return the directories of all overlays."""
    return sorted(path.parent for path in DEPLOY.glob("overlays/*/kustomization.yaml"))


@functools.cache
def usable_kubectls() -> tuple[str, ...]:
    """Return the paths of the kubectls that can render the overlays, oldest first."""
    found = find_kubectls()
    return tuple(
        path
        for version, path in found.items()
        if tuple(int(number) for number in version.split(".")) >= OLDEST
    )


def why_not_rendered() -> str | None:
    """Return why nothing can be rendered here, for a test's ``skip``, or None."""
    return None if usable_kubectls() else "no kubectl from 1.21 on is in PATH or KUBECTL"


@functools.cache
def rendered_text(directory: Path, kubectl: str) -> str:
    """Return the output of ``kubectl kustomize``, which must succeed without warnings."""
    done = subprocess.run(
        [kubectl, "kustomize", str(directory)],
        env={**os.environ, "GOGC": KUBECTL_GOGC},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{kubectl} kustomize {directory}: {done.stderr}")
    return done.stdout


def render(directory: Path) -> list[Object]:
    """Return the objects of a kustomization, rendered by the newest kubectl."""
    return read_objects(rendered_text(directory, usable_kubectls()[-1]))


def read_objects(text: str) -> list[Object]:
    """Return the objects in a text, parsed by PyYAML's C parser if available."""
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def read_base() -> list[Object]:
    """Return the objects of the base without kubectl; image names have no tags.

    This is for tests that need its roles without kubectl, or with an old one.
    """
    files = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [each for name in files for each in yaml.safe_load_all((BASE / name).read_text())]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Return the objects of these kinds."""
    return [each for each in objects if each["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """Return the only object of a kind and name."""
    (found,) = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def server_of(objects: list[Object]) -> Object:
    """Return the server's workload: a Deployment, or a DaemonSet with firewall rules."""
    (found,) = [
        each
        for each in of_kind(objects, "Deployment", "DaemonSet")
        if each["metadata"]["name"] == "yurt-tunnel-server"
    ]
    return found


def pod_of(workload: Object) -> Object:
    """Return the ``PodSpec`` of a Deployment or DaemonSet."""
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def containers(objects: list[Object]) -> Iterator[Object]:
    """Yield all containers, including init containers."""
    for workload in of_kind(objects, "Deployment", "DaemonSet"):
        pod = pod_of(workload)
        yield from pod.get("initContainers", [])
        yield from pod["containers"]


def flags_of(workload: Object, host_ip: str = "192.0.2.10") -> tuple[list[str], str, list[str]]:
    """Return the only container's arguments: those of twist, the command, and its flags.

    Variables are replaced as by Kubernetes; an undefined one raises an AssertionError.
    """
    (container,) = pod_of(workload)["containers"]
    samples = {
        "status.hostIP": host_ip,
        "spec.nodeName": "node-1",
        "metadata.namespace": workload["metadata"]["namespace"],
    }
    arguments = list(container["args"])
    for variable in container["env"]:
        value = samples[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        arguments = [each.replace(f"$({variable['name']})", value) for each in arguments]
    if any("$(" in each for each in arguments):
        raise AssertionError(f"a variable is not defined: {arguments}")
    (place,) = [number for number, each in enumerate(arguments) if not each.startswith("-")]
    return arguments[:place], arguments[place], arguments[place + 1 :]
