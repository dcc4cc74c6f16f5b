"""The workloads in the manifests, and the settings that their arguments result in."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from twisted.trial import unittest

from tests.deploy.rbac import grants_of
from tests.deploy.rendering import (
    BASE,
    flags_of,
    of_kind,
    overlays,
    pod_of,
    render,
    why_not_rendered,
)
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.server.options import Options as ServerOptions


def workloads(directory):
    """Return the Deployments and DaemonSets that run this project's programs."""
    return [
        each
        for each in of_kind(render(directory), "Deployment", "DaemonSet")
        if pod_of(each)["containers"][0]["image"].startswith("yurttunnel:")
    ]


def settings_of(workload, *host_ip):
    """Return the program's settings for the arguments in a manifest."""
    _, command, flags = flags_of(workload, *host_ip)
    options = ServerOptions() if command == "yurttunnel-server" else AgentOptions({})
    options.parseOptions(flags)
    return options.settings


def with_workloads():
    """Return all kustomizations with workloads."""
    return [each for each in [BASE, *overlays()] if workloads(each)]


class RenderedTestCase(unittest.SynchronousTestCase):
    """Tests that need kubectl and are skipped without it."""

    skip = why_not_rendered()


class KustomizationTestCase(RenderedTestCase):
    """A test case with an operator's kustomizations."""

    def kustomization(self, resource: Path, **fields) -> Path:
        """Write a kustomization with ``resource``; make paths in ``fields`` relative."""
        directory = Path(self.mktemp()).resolve()
        directory.mkdir()
        content = {
            "resources": [os.path.relpath(resource, directory)],
            **{
                name: [os.path.relpath(each, directory) for each in value]
                if isinstance(value, list)
                else value
                for name, value in fields.items()
            },
        }
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return directory


def key(each):
    """Return the key of an object: its kind, namespace and name."""
    return each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]


def grants(directory):
    """Return the grants of a kustomization's accounts, regardless of its namespace."""
    return {
        (grant.subject.rpartition(":")[2], grant.verb, grant.group, grant.path, grant.name)
        for grant in grants_of(render(directory))
    }


def volume_at(workload, path):
    """Return the volume that is mounted at ``path`` or above it."""
    pod = pod_of(workload) if "template" in workload["spec"] else workload["spec"]
    (container,) = pod["containers"]
    (mount,) = [
        each for each in container["volumeMounts"] if path.is_relative_to(each["mountPath"])
    ]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    return volume
