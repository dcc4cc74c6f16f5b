"""The workloads in the manifests, and what their programs make of the arguments."""

from __future__ import annotations

from twisted.trial import unittest

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
    """Give the overlays' Deployments and DaemonSets."""
    return of_kind(render(directory), "Deployment", "DaemonSet")


def settings_of(workload):
    """Give the settings that the program itself reads from the arguments in a manifest."""
    _, command, flags = flags_of(workload)
    options = ServerOptions() if command == "yurttunnel-server" else AgentOptions({})
    options.parseOptions(flags)
    return options.settings


def with_workloads():
    """Give all kustomizations that have workloads."""
    return [each for each in [BASE, *overlays()] if workloads(each)]


class RenderedTestCase(unittest.SynchronousTestCase):
    """Tests that need kubectl; without one they are skipped."""

    skip = why_not_rendered()


def key(each):
    """Give what tells an object from all others."""
    return each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]


def volume_at(workload, path):
    """Give the volume that is mounted at ``path`` or above it."""
    pod = pod_of(workload) if "template" in workload["spec"] else workload["spec"]
    (container,) = pod["containers"]
    (mount,) = [
        each for each in container["volumeMounts"] if path.is_relative_to(each["mountPath"])
    ]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    return volume
