"""The Helm chart in ``deploy``, rendered with and without helm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.go_templates import Templates
from tests.deploy.rendering import DEPLOY, Object, read_objects

NAMESPACE = "kube-system"
KUBERNETES = "1.30"


def why_not_by_helm() -> str | None:
    """Return why helm cannot be used here, for a test's ``skip``, or None."""
    if shutil.which("helm"):
        return None
    return "helm is not installed, which no registry of Debian's, Python's or Node's packages has"


def chart_file(path: str) -> str:
    """Return the content of a file of the chart like ``.Files.Get``: empty if it is missing."""
    file = DEPLOY / path
    return file.read_text() if file.is_file() else ""


def rendered(namespace: str = NAMESPACE, **values: Any) -> list[Object]:
    """Return the chart's objects without helm; ``values`` override those of values.yaml.

    Raises :class:`~tests.deploy.go_templates.TemplateFailed` if the chart rejects them.
    """
    templates = Templates()
    data = {
        "Values": {**yaml.safe_load((DEPLOY / "values.yaml").read_text()), **values},
        "Release": {"Namespace": namespace},
        "Files": {"Get": chart_file},
    }
    for name in ("_kustomize.tpl", "objects.yaml"):
        text = templates.render((DEPLOY / "templates" / name).read_text(), data)
    return [each for each in read_objects(text) if each]


def rendered_by_helm(directory: Path, namespace: str = NAMESPACE, **values: Any) -> list[Object]:
    """Return the objects that helm renders; the values file is written to ``directory``."""
    values_file = directory / "values.yaml"
    values_file.write_text(yaml.safe_dump(values))
    command = ["helm", "template", "yurttunnel", str(DEPLOY), "--values", str(values_file)]
    done = subprocess.run(
        [*command, "--namespace", namespace, "--kube-version", KUBERNETES],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [each for each in read_objects(done.stdout) if each]
