"""The workloads in the manifests, and what their programs make of the arguments."""

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
    """Return the Deployments and DaemonSets that run our programs."""
    return [
        each
        for each in of_kind(render(directory), "Deployment", "DaemonSet")
        if pod_of(each)["containers"][0]["image"].startswith("yurttunnel:")
    ]


def settings_of(workload, *host_ip):
    """Return the settings that the program itself reads from the arguments in a manifest."""
    _, command, flags = flags_of(workload, *host_ip)
    options = ServerOptions() if command == "yurttunnel-server" else AgentOptions({})
    options.parseOptions(flags)
    return options.settings


def with_workloads():
    """Return all kustomizations that have workloads."""
    return [each for each in [BASE, *overlays()] if workloads(each)]


class RenderedTestCase(unittest.SynchronousTestCase):
    """Tests that need kubectl; without one they are skipped."""

    skip = why_not_rendered()


class KustomizationTestCase(RenderedTestCase):
    """A test case with kustomizations as an operator writes them."""

    def kustomization(self, resource: Path, **fields) -> Path:
        """Write one that has ``resource``; paths among ``fields`` become relative ones."""
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
    """Return what tells an object from all others."""
    return each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]


def grants(directory):
    """Return what the accounts of a kustomization may do, whatever its namespace is."""
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
