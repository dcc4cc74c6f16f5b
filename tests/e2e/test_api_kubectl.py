"""The embedded API alone, over TLS, with every installed version of kubectl.

There is no node behind it: the test marks every pod as running and confirms every deletion.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from twisted.internet import reactor
from twisted.internet.defer import fail
from twisted.trial.unittest import SkipTest

from tests.apiserver.api import ClusterAPI
from tests.certificates import common_name
from tests.e2e.kubectl import Kubectl, find_kubectls
from tests.e2e.support import EndToEndTestCase
from yurtlab.api.resources import NODES, PODS
from yurtlab.api.service import KubernetesAPI
from yurtlab.api.store import DELETED, Store
from yurttunnel.http.server import HTTPFactory
from yurttunnel.quickstart.trust import QuickstartTrust
from yurttunnel.tunnel import tls

versions = find_kubectls()

MANIFEST = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {app: web}}
data: {color: red}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: main, image: "web:1", env: [{name: A, value: "1"}], ports: [{containerPort: 80}]}
  - {name: side, image: "side:1"}
"""


class NoNode(Exception):
    """Connections to nodes always fail."""


class Api:
    """An API that listens on loopback; ``directory`` and ``kubeconfig`` are for kubectl."""

    make = KubernetesAPI

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.kubeconfig = os.path.join(directory, "kubeconfig")
        self.store = Store(reactor)
        self._api = self.make(reactor, self.store, self._connections)
        self._factory = HTTPFactory(reactor, self._api)
        trust = QuickstartTrust(reactor, Path(directory, "pki"), "edge-1")
        secured = tls.server_side(reactor, trust.api, self._factory)
        self._port = reactor.listenTCP(0, secured, interface="127.0.0.1")
        Path(self.kubeconfig).write_bytes(trust.kubeconfig(self._port.getHost().port))
        self._unsubscribe = self.store.watch(PODS, self._pod_changed)
        ready = [{"type": "Ready", "status": "True"}]
        node = {"metadata": {"name": "edge-1"}, "status": {"conditions": ready}}
        self.store.create(NODES, None, node)

    def stop(self):
        """Stop listening, and end all connections."""
        self._unsubscribe()
        self._api.stop()
        self._factory.close()
        return self._port.stopListening()

    def _connections(self, node, port):
        return lambda **how: fail(NoNode("nobody is at home"))

    def _pod_changed(self, change, pod):
        """Mark a new pod as running, and confirm a deletion."""
        metadata, status = pod["metadata"], pod["status"]
        pod_key = (PODS, metadata["namespace"], metadata["name"])
        if change == DELETED:
            return
        if "deletionTimestamp" in metadata:
            self.store.remove(*pod_key)
        elif status["phase"] == "Pending" and "nodeName" in pod["spec"]:
            ready = [{"type": "Ready", "status": "True"}]
            self.store.update_status(*pod_key, {**status, "phase": "Running", "conditions": ready})


class ClusterApi(Api):
    """The same with the additional kinds of a cluster."""

    make = ClusterAPI


class WithKubectl:
    """Mixed into the tests of each version."""

    api_class = Api

    async def setUp(self):
        """Start an API."""
        await super().setUp()
        if self.version not in versions:
            raise SkipTest("kubectl is not installed")
        self.api = self.api_class(self.directory)
        self.addCleanup(self.api.stop)
        self.kubectl = Kubectl(reactor, versions[self.version], self.api)
        self.manifest = os.path.join(self.directory, "manifest.yaml")
        self.write(MANIFEST)

    def at_least(self, version):
        """Return whether kubectl is of this version or newer."""
        ours, other = (tuple(map(int, one.split("."))) for one in (self.version, version))
        return ours >= other

    def write(self, manifest):
        """Write the manifest."""
        Path(self.manifest).write_text(manifest)

    async def output(self, *arguments):
        """Run kubectl, which must succeed."""
        return await self.kubectl.output(*arguments)

    async def refused(self, *arguments):
        """Run kubectl, which must fail; return its error."""
        finished = await self.kubectl.run(*arguments)
        self.assertNotEqual(0, finished.status, finished)
        return finished.error.decode()


class ApiKubectlTests(WithKubectl):
    """What kubectl does with the lab's API."""

    async def test_get(self):
        """Nodes, namespaces and pods are shown as in any cluster."""
        nodes = await self.output("get", "nodes", "-o", "wide")
        self.assertRegex(
            nodes, r"\ANAME +STATUS +ROLES +AGE +VERSION +INTERNAL-IP .*\s+edge-1 +Ready"
        )
        names = await self.output("get", "ns", "-o", "name")
        self.assertEqual(4, len(names.splitlines()))
        await self.output("run", "web", "--image=none", "--labels=app=web")
        pods = await self.output("get", "pods", "-l", "app=web", "--show-labels", "-o", "wide")
        self.assertRegex(pods, r"web +0/1 +Running +0 +\d+s +<none> +edge-1 .* app=web")
        self.assertIn("pod/web", await self.output("get", "all"))
        found = await self.output("get", "pods", "-A", "--field-selector=status.phase=Pending")
        self.assertEqual("", found)
        missing = await self.refused("get", "pod", "no")
        self.assertEqual('Error from server (NotFound): pods "no" not found\n', missing)
        described = await self.output("describe", "pod", "web")
        self.assertRegex(described, r"Status: +Running")

    async def test_apply(self):
        """Manifests are applied, recognized as unchanged, changed and deleted."""
        apply = ("apply", "-f", self.manifest)
        self.assertEqual("configmap/settings created\npod/web created\n", await self.output(*apply))
        again = "configmap/settings unchanged\npod/web unchanged\n"
        self.assertEqual(again, await self.output(*apply))
        self.write(MANIFEST.replace("red", "blue").replace("web:1", "web:2"))
        changed = "configmap/settings configured\npod/web configured\n"
        self.assertEqual(changed, await self.output(*apply))
        path = "jsonpath={.spec.containers[*].image}"
        self.assertEqual("web:2 side:1", await self.output("get", "pod", "web", "-o", path))
        applied = await self.output(*apply, "--server-side", "--force-conflicts")
        self.assertIn("pod/web serverside-applied", applied)
        deleted = await self.output("delete", "-f", self.manifest)
        self.assertRegex(deleted, r'configmap "settings" deleted.*\s+pod "web" deleted')
        self.assertEqual([], self.api.store.list(PODS))

    async def test_validation(self):
        """The server rejects an invalid manifest, and kubectl shows why.

        Before 1.25 kubectl does not request strict validation, and before 1.27 it determines
        support of dry runs from OpenAPI 2, of which little exists here.
        """
        self.write(MANIFEST.replace('image: "web:1"', "imagee: x"))
        error = await self.refused("create", "-f", self.manifest)
        if self.at_least("1.25"):
            unknown = 'strict decoding error: unknown field "spec.containers[0].imagee"'
            self.assertIn(unknown, error)
        self.write(MANIFEST.replace('name: main, image: "web:1"', "name: main"))
        error = await self.refused("create", "-f", self.manifest)
        self.assertIn("spec.containers[0].image: Required value", error)
        if self.at_least("1.27"):
            tried = await self.output("run", "web", "--image=none", "--dry-run=server")
            self.assertEqual("pod/web created (server dry run)\n", tried)
        self.assertEqual([], self.api.store.list(PODS))

    async def test_change(self):
        """Objects are labeled, annotated, patched and waited for; a node is drained."""
        await self.output("run", "web", "--image=none")
        await self.output("wait", "--for=condition=Ready", "pod/web", "--timeout=50s")
        await self.output("label", "pod", "web", "tier=front")
        await self.output("annotate", "pod", "web", "note=x")
        await self.output("set", "image", "pod/web", "web=other")
        await self.output("label", "pod", "web", "run-")
        await self.output("patch", "pod", "web", "--type=json", "-p", _JSON_PATCH)
        await self.output("cordon", "edge-1")
        pod = self.api.store.get(PODS, "default", "web")
        self.assertEqual({"tier": "front", "more": "1"}, pod["metadata"]["labels"])
        self.assertEqual({"note": "x"}, pod["metadata"]["annotations"])
        self.assertEqual("other", pod["spec"]["containers"][0]["image"])
        await self.output("drain", "edge-1", "--force", "--grace-period=1")
        self.assertEqual([], self.api.store.list(PODS))
        self.assertTrue(self.api.store.get(NODES, None, "edge-1")["spec"]["unschedulable"])

    async def test_watch(self):
        """A watch shows changes in the same table."""
        await self.output("run", "first", "--image=none")
        watch = self.kubectl.start("get", "pods", "-w")
        try:
            await watch.wait_for_output(r"NAME +READY +STATUS.*\s+first +0/1 +Running")
            await self.output("run", "web", "--image=none")
            await watch.wait_for_output(r"\nweb +0/1 +Pending")
            await watch.wait_for_output(r"web +0/1 +Running")
            await self.output("delete", "pod", "web")
            self.assertEqual(
                ["first"], [one["metadata"]["name"] for one in self.api.store.list(PODS)]
            )
        finally:
            watch.kill()
            await watch.finished()

    async def test_namespaces(self):
        """A namespace is created, and deleted with its contents."""
        await self.output("create", "namespace", "team")
        await self.output("-n", "team", "create", "configmap", "settings", "--from-literal=a=b")
        await self.output("-n", "team", "create", "secret", "generic", "s", "--from-literal=a=b")
        await self.output("-n", "team", "create", "service", "clusterip", "s", "--tcp=80:web")
        ports = await self.output(
            "-n", "team", "get", "service", "s", "-o", "jsonpath={.spec.ports}"
        )
        self.assertIn('"targetPort":"web"', ports)
        await self.output("-n", "team", "run", "web", "--image=none")
        await self.output("delete", "namespace", "team", "--timeout=50s")
        self.assertEqual([], self.api.store.list(PODS))
        refused = await self.refused("delete", "namespace", "default")
        self.assertIn("this namespace may not be deleted", refused)

    async def test_documents(self):
        """Kinds are listed and explained, and the version is shown."""
        self.assertRegex(
            await self.output("api-resources"), r"leases +coordination.k8s.io/v1 +true"
        )
        if self.at_least("1.27"):
            explained = await self.output("explain", "pod.spec.containers.command")
            self.assertIn("Entrypoint array", explained)
        self.assertIn("v1.33.0", await self.output("version"))
        self.assertEqual("ok", await self.output("get", "--raw", "/readyz"))

    async def test_unreachable_node(self):
        """The error for an unreachable node is shown, for logs and for exec."""
        await self.output("run", "web", "--image=none")
        for arguments in (("logs", "web"), ("exec", "web", "--", "true")):
            error = await self.refused(*arguments)
            self.assertIn("error dialing backend: edge-1:10250: nobody is at home", error)


class ClusterApiKubectlTests(WithKubectl):
    """kubectl with the additional kinds of a cluster."""

    api_class = ClusterApi

    async def test_authentication(self):
        """The user of the kubeconfig is authenticated, and may do everything."""
        self.assertEqual("yes\n", await self.output("auth", "can-i", "delete", "nodes"))
        if self.at_least("1.28"):
            self.assertIn("quickstart-admin", await self.output("auth", "whoami"))

    async def test_certificates_are_approved(self):
        """A certificate signing request can be approved."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = common_name("alice")
        request = x509.CertificateSigningRequestBuilder(subject).sign(key, hashes.SHA256())
        spec = {
            "request": b64encode(request.public_bytes(Encoding.PEM)).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
        }
        kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
        self.write(json.dumps({**kind, "metadata": {"name": "alice"}, "spec": spec}))
        await self.output("apply", "-f", self.manifest)
        self.assertIn("Pending", await self.output("get", "csr", "alice"))
        await self.output("certificate", "approve", "alice")
        self.assertIn("Approved", await self.output("get", "csr", "alice"))

    async def test_tokens(self):
        """Tokens of service accounts can be created."""
        self.assertRegex(await self.output("create", "token", "default"), r"^ey\S+\s*$")


_JSON_PATCH = '[{"op": "add", "path": "/metadata/labels/more", "value": "1"}]'

for _version in versions or {"none": ""}:
    for _tests in (ApiKubectlTests, ClusterApiKubectlTests):
        _name = _tests.__name__.replace("Tests", f"{_version.replace('.', '')}Tests")
        globals()[_name] = type(
            _name,
            (_tests, EndToEndTestCase),
            {"version": _version, "__doc__": f"kubectl {_version}.", "__module__": __name__},
        )
del _name, _tests, _version
