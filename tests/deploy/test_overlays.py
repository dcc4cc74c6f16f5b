"""The overlays for egress selectors and for two installations in one cluster."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import yaml
from kubernetes.client import models

from tests.deploy.rbac import grants_of
from tests.deploy.rendering import (
    BASE,
    DEPLOY,
    named,
    pod_of,
    render,
)
from tests.deploy.workloads import (
    RenderedTestCase,
    key,
    settings_of,
    volume_at,
    with_workloads,
    workloads,
)
from yurttunnel.server.endpoints import TlsEndpoint, UnixEndpoint

HOST_IPS = ["192.0.2.10", "2001:db8:0:1::15"]
"""Addresses of nodes, one of each family."""


class HostAddressTests(RenderedTestCase):
    """The node's address in arguments, in the API's notation."""

    def test_programs_accept_addresses_of_either_family(self):
        """The programs accept a node address of either family wherever an overlay uses it."""
        for directory in with_workloads():
            for workload in workloads(directory):
                for host_ip in HOST_IPS:
                    settings_of(workload, host_ip)


class EgressSelectorTests(RenderedTestCase):
    """kube-apiserver connects where the server listens."""

    def test_the_socket_is_where_the_server_makes_it(self):
        """Server, pod, and kube-apiserver's pod and configuration have the same socket path."""
        directory = DEPLOY / "overlays" / "egress-selector"
        server = named(render(directory), "Deployment", "yurt-tunnel-server")
        ((_, endpoint),) = settings_of(server).connect_endpoints
        self.assertIsInstance(endpoint, UnixEndpoint)
        self.assertEqual(endpoint.path, _transport(directory)["uds"]["udsName"])
        host_path = volume_at(server, PurePosixPath(endpoint.path))["hostPath"]["path"]
        kube_apiserver = _patched_kube_apiserver(self, directory)
        volume = volume_at(kube_apiserver, PurePosixPath(endpoint.path))
        self.assertEqual(host_path, volume["hostPath"]["path"])
        (maker,) = pod_of(server)["initContainers"]
        self.assertEqual(host_path, maker["command"][-1])
        group = str(pod_of(server)["securityContext"]["fsGroup"])
        self.assertEqual(group, maker["command"][maker["command"].index("-g") + 1])

    def test_the_port_is_the_servers(self):
        """kube-apiserver's address has the Service's port and uses TLS."""
        directory = DEPLOY / "overlays" / "egress-selector-tcp"
        objects = render(directory)
        for host_ip in HOST_IPS:
            settings = settings_of(named(objects, "Deployment", "yurt-tunnel-server"), host_ip)
            ((_, endpoint),) = settings.connect_endpoints
            self.assertIsInstance(endpoint, TlsEndpoint)
            self.assertEqual((host_ip, host_ip), (settings.bind_address, endpoint.interface))
        service = named(objects, "Service", "x-tunnel-server-internal-svc")
        (port,) = [each for each in service["spec"]["ports"] if each["name"] == "connect"]
        match = re.fullmatch(r"https://([0-9.]+):([0-9]+)", _transport(directory)["tcp"]["url"])
        self.assertEqual(port["port"], int(match[2]))
        _patched_kube_apiserver(self, directory)

    def test_an_agent_is_on_every_node(self):
        """Agents run on cloud nodes too, since all nodes are reached through the tunnel."""
        for name in ("egress-selector", "egress-selector-tcp"):
            objects = render(DEPLOY / "overlays" / name)
            agent = pod_of(named(objects, "DaemonSet", "yurt-tunnel-agent"))
            self.assertEqual({"kubernetes.io/os": "linux"}, agent["nodeSelector"])


class SideBySideTests(RenderedTestCase):
    """Two installations in one cluster, on the same nodes."""

    def setUp(self):
        """Render both installations."""
        self.first = render(BASE)
        self.second = render(DEPLOY / "overlays" / "side-by-side")

    def test_no_object_is_in_both(self):
        """The installations share no object, so changing one leaves the other unchanged."""
        first = {key(each) for each in self.first}
        self.assertEqual(set(), first & {key(each) for each in self.second})

    def test_no_port_of_a_node_is_in_both(self):
        """The installations share no port of server, agent or node port."""
        first, second = (_ports(objects) for objects in (self.first, self.second))
        self.assertEqual(6, len(first))
        self.assertEqual(6, len(second))
        self.assertEqual(set(), first & second)

    def test_bindings_are_for_its_own_accounts(self):
        """The second installation's bindings are for its own service accounts."""
        subjects = {grant.subject for grant in grants_of(self.second)}
        self.assertEqual(
            {
                "tunnel-proxy-client",
                "system:serviceaccount:yurttunnel:yurt-tunnel-server",
                "system:serviceaccount:yurttunnel:yurt-tunnel-agent",
            },
            subjects,
        )


def _ports(objects):
    server = settings_of(named(objects, "Deployment", "yurt-tunnel-server"))
    agent = settings_of(named(objects, "DaemonSet", "yurt-tunnel-agent"))
    public = named(objects, "Service", "x-tunnel-server-svc")["spec"]["ports"]
    return {
        server.agent_port,
        server.secure_port,
        server.insecure_port,
        server.meta_port,
        agent.meta_port,
        public[0]["nodePort"],
    }


def _transport(directory):
    """Return the transport in kube-apiserver's egress configuration."""
    read = yaml.safe_load((directory / "egress-selector-configuration.yaml").read_text())
    assert read["apiVersion"] == "apiserver.k8s.io/v1beta1"
    assert read["kind"] == "EgressSelectorConfiguration"
    (selection,) = read["egressSelections"]
    assert selection["name"] == "cluster"
    assert selection["connection"]["proxyProtocol"] == "HTTPConnect"
    return selection["connection"]["transport"]


def _patched_kube_apiserver(test, directory):
    """Apply kubeadm's patch to a static pod in kubeadm's form, and check the result."""
    place = Path(test.mktemp())
    place.mkdir()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-apiserver", "namespace": "kube-system"},
        "spec": {
            "containers": [
                {
                    "name": "kube-apiserver",
                    "command": ["kube-apiserver", "--client-ca-file=/etc/kubernetes/pki/ca.crt"],
                    "volumeMounts": [{"name": "k8s-certs", "mountPath": "/etc/kubernetes/pki"}],
                }
            ],
            "volumes": [{"name": "k8s-certs", "hostPath": {"path": "/etc/kubernetes/pki"}}],
        },
    }
    patch = (directory / "kubeadm-patches" / "kube-apiserver+json.yaml").read_text()
    kustomization = {
        "resources": ["pod.yaml"],
        "patches": [{"target": {"kind": "Pod", "name": "kube-apiserver"}, "patch": patch}],
    }
    (place / "pod.yaml").write_text(yaml.safe_dump(pod))
    (place / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    (patched,) = render(place)
    models.V1Pod.model_validate(patched)
    (container,) = patched["spec"]["containers"]
    (flag,) = [each for each in container["command"] if "egress" in each]
    file = PurePosixPath(flag.removeprefix("--egress-selector-config-file="))
    volume = volume_at(patched, file)
    test.assertEqual(str(file.parent), volume["hostPath"]["path"])
    test.assertIn(str(file), (directory / "egress-selector-configuration.yaml").read_text())
    for name in ("caBundle", "clientCert", "clientKey"):
        used = _transport(directory).get("tcp", {}).get("tlsConfig", {}).get(name)
        if used is not None:
            volume_at(patched, PurePosixPath(used))
    return patched
