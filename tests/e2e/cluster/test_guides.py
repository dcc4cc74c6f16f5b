"""The commands in guides that need a cluster, run as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tarfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.rendering import DEPLOY, usable_kubectls, why_not_rendered
from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import (
    NAMESPACE,
    NODES,
    SECURE_PORT,
    SERVER_META_PORT,
    SERVERS,
    STOP_SECONDS,
    World,
)
from tests.e2e.guides import CLUSTER, DOCS, Guide, blocks
from tests.e2e.network.namespaces import run
from tests.e2e.programs import ROOT

PAGES = {
    *(f"docs/{name}.md" for name in ("in-cluster", "migration", "operations", "steering")),
    "docs/tutorials/migration.md",
    *("deploy/README.md", "deploy/proxy/README.md"),
    *(f"deploy/overlays/{name}/README.md" for name in ("dns", "egress-selector")),
    *(f"deploy/overlays/{name}/README.md" for name in ("egress-selector-tcp", "monitoring")),
}
"""Those whose commands are run here."""
OTHERS = {"docs/hub.md": "tests.e2e.hub.test_identity"}
"""Those whose commands another module runs."""

YAML = re.compile(r"^ *```yaml\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)

EDGE, CLOUD = "edge-1", "cp-1"
ADDRESSES = {EDGE: [NODES["edge-1"]], CLOUD: [NODES["edge-2"]]}
"""The nodes, and where they are."""

META = "127.0.0.1:10265"
INTERNAL = "x-tunnel-server-internal-svc.kube-system.svc:10250"

SERVER = "deployment/yurt-tunnel-server"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
READER = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nodes-through-the-tunnel}
subjects: [{kind: ServiceAccount, name: reader, namespace: kube-system}]
"""
KUBE_PROXY = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec: {containers: [{name: kube-proxy, image: none}]}
"""
APPROVER = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: yurt-controller-manager}
rules:
- apiGroups: [certificates.k8s.io]
  resources: [signers]
  resourceNames: [kubernetes.io/kube-apiserver-client]
  verbs: [approve]
"""


class GuidesTests(ClusterTestCase):
    """The commands of guides print what the guides show."""

    skip = why_not_rendered()

    async def setUp(self) -> None:
        """Create a checkout of the manifests, a home directory, and a reader's programs."""
        await super().setUp()
        self.checkout = Path(self.directory, "yurttunnel")
        shutil.copytree(DEPLOY, self.checkout / "deploy")
        self.programs = Path(self.directory, "bin")
        self.programs.mkdir()
        (self.programs / "kubectl").symlink_to(usable_kubectls()[-1])
        command = self.programs / "yurttunnel"
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m yurttunnel.cli "$@"\n'
        )
        command.chmod(0o755)
        self.home = Path(self.directory, "home")

    def environment(self, world: World, reached: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of commands; ``reached`` maps names and ports."""
        self.home.mkdir(exist_ok=True)
        lines = ["silent", "show-error", "fail-with-body", "max-time = 20", 'noproxy = "*"']
        lines += [f'connect-to = "{name}:{place}"' for name, place in reached.items()]
        (self.home / ".curlrc").write_text("\n".join(lines))
        return {
            **world.kubectl.environment,
            "HOME": str(self.home),
            "PATH": f"{self.programs}:{world.kubectl.environment['PATH']}",
        }

    async def kubectl(self, world: World, *arguments: str, stdin: str = "") -> str:
        """Run kubectl to prepare what a page requires."""
        return await world.kubectl.output(*arguments, stdin=stdin.encode())

    async def start_servers(self, world: World, *steering: str) -> None:
        """Start two servers, the first with flags for ``steering``, and the agents."""
        first, second = SERVERS[:2]
        own = await world.server(second, "--insecure-bind-address", "127.0.0.1")
        own.meta_host = "127.0.0.1"
        own.disable_fork_server()
        self.servers = [await world.server(first, *steering), own]
        await world.publish_servers()
        self.agents = {name: await world.agent(name) for name in world.nodes}
        for program in (*self.servers, *self.agents.values()):
            program.start()
        for program in (*self.servers, *self.agents.values()):
            await program.ready(60)
        await self.connected(self.servers, self.agents)

    async def test_in_a_cluster(self) -> None:
        """Install it, steer traffic to it, inspect it, and remove it."""
        world = await self.make_world(nodes=ADDRESSES)
        await world.add_nodes(EDGE)
        await world.add_nodes(CLOUD, edge=False)
        account = Path(self.directory, "account")
        replacements = {"CLOUD-NODE": CLOUD, "EDGE-NODE": EDGE, ACCOUNT: str(account)}
        replacements |= {"IMAGE": "registry.example/yurttunnel", "POD": "server"}
        environment = self.environment(
            world,
            {
                META: f"{SERVERS[0]}:{SERVER_META_PORT}",
                INTERNAL: f"{SERVERS[0]}:{SECURE_PORT}",
            },
        )
        install = Guide(DOCS / "in-cluster.md", environment, replacements)
        steering = Guide(DOCS / "steering.md", environment, replacements)
        for page in (install, install, steering, steering):
            await page.run_next(self.checkout)
        await self.start_servers(world, "--enable-iptables=true", "--enable-dns-controller=true")
        await self.make_reader(world, account)
        self.assertIn("process_cpu_seconds_total", await install.run_next(self.checkout))
        self.assertTrue(install.finished)

        seen = await steering.run_next(self.checkout)
        for what in ('"leader": true', "TUNNEL-PORT-10250", *ADDRESSES[EDGE]):
            self.assertIn(what, seen)
        copied = Path(self.directory, "copied")
        copied.write_text("what was copied")
        replacements = {
            "kubectl exec POD": f"kubectl -n {NAMESPACE} exec POD",
            "/path/of/file": str(copied),
            "sha256sum file": f"sha256sum {copied}",
            **replacements,
        }
        await self.diagnose(world, Guide(DOCS / "operations.md", environment, replacements))

        self.servers[0].signal(signal.SIGKILL)
        await self.servers[0].ended(10)
        world.servers = [SERVERS[1]]
        self.assertIn("TUNNEL-PORT", run("iptables", "-t", "nat", "-S"))
        self.assertIn("removed", await steering.run_next(self.checkout))
        self.assertNotIn("TUNNEL-PORT", run("iptables", "-t", "nat", "-S"))
        self.assertTrue(steering.finished)

    async def make_reader(self, world: World, account: Path) -> None:
        """Create an account that may read metrics, with its pods' environment."""
        await self.kubectl(world, "-n", NAMESPACE, "create", "serviceaccount", "reader")
        role = yaml_with("nodes-through-the-tunnel", DOCS / "migration.md")
        await self.kubectl(world, "apply", "-f", "-", stdin=f"{role}---\n{READER}")
        account.mkdir()
        (account / "token").write_text(await world.token("reader"))
        shutil.copy(world.identities.ca_path, account / "ca.crt")

    async def diagnose(self, world: World, page: Guide) -> None:
        """Compare a copied file, and diagnose a server by a command in its pod."""
        arguments = self.servers[1].arguments
        variables = {"PATH": f"{self.programs}:{os.environ['PATH']}"}
        # In a container there is no other server.
        variables |= {"YURTTUNNEL_STATE_DIR": arguments[arguments.index("--cert-dir") + 1]}
        container = {
            "name": "server",
            "image": "none",
            "command": ["sleep", "1d"],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "server", "namespace": NAMESPACE},
            "spec": {"nodeName": EDGE, "containers": [container]},
        }
        await self.kubectl(world, "apply", "-f", "-", stdin=json.dumps(pod))
        await self.kubectl(
            world, "-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/server", "--timeout=50s"
        )
        sums = [line.split()[0] for line in (await page.run_next(self.home)).splitlines()]
        self.assertEqual(2, len(sums))
        self.assertEqual(1, len({*sums}))
        # Its exit status reports problems, and the clock of a machine in a test may be one.
        await page.run_next(self.home, options="-u")
        with tarfile.open(self.home / "server.tar.gz") as archive:
            names = {member.name.partition("/")[2] for member in archive}
        self.assertIn("summary.txt", names)
        self.assertTrue(page.finished)

    async def test_from_the_predecessor(self) -> None:
        """Install it in parallel, move the callers, remove the predecessor, and replace it."""
        world = await self.make_world(nodes=ADDRESSES)
        await world.add_nodes(EDGE)
        await self.start_servers(world)
        own = Path(self.directory, "own")
        own.mkdir()
        pki = world.identities.directory
        replacements = {
            "/etc/kubernetes/pki/apiserver-kubelet-client": str(pki / "kubelet-client"),
            "203.0.113.10:10273": f"{SERVERS[0]}:{SECURE_PORT}",
            "YOUR-DIRECTORY-WITH-THE-BASE": str(self.checkout / "deploy" / "base"),
        }
        meta = {"127.0.0.1:10275": f"{SERVERS[0]}:{SERVER_META_PORT}"}
        environment = self.environment(world, meta)
        short = Guide(DOCS / "tutorials/migration.md", environment, replacements)
        await short.run_next(self.checkout)
        self.assertIn(f'"node": "{EDGE}"', await short.run_next(self.checkout))
        self.assertTrue(short.finished)

        arguments = "/spec/template/spec/containers/0/args"
        change = {"op": "replace", "path": f"{arguments}/4", "value": "--enable-iptables=true"}
        await self.kubectl(
            world,
            *("-n", NAMESPACE, "patch", SERVER, "--type=json", f"--patch={json.dumps([change])}"),
        )
        page = Guide(DOCS / "migration.md", environment, replacements)
        self.assertIn("localhost-proxy-ports", await page.run_next(own))
        text = yaml_with("--tunnelserver-addr=203.0.113.10:31009", DOCS / "migration.md")
        (own / "kustomization.yaml").write_text(text)
        await page.run_next(own)
        self.assertIn(f'"node": "{EDGE}"', await page.run_next(own))
        self.assertEqual("ok", await page.run_next(own))

        await page.run_next(own, editor="sed -i s/--enable-iptables=true/--enable-iptables=false/")
        self.assertIn("--enable-iptables=false", await self.show(world, SERVER))
        text = text.replace("kind: Deployment", "kind: DaemonSet")
        added = yaml_with("deploy/components/iptables", DOCS / "migration.md")
        (own / "kustomization.yaml").write_text(text + added)
        await page.run_next(own)

        for server in self.servers:
            await server.stop(STOP_SECONDS)
        await page.run_next(own)
        await self.kubectl(world, "apply", "-f", "-", stdin=APPROVER)
        await page.run_next(own, editor="sed -i s/approve/sign/")
        approver = await self.show(world, "clusterrole/yurt-controller-manager")
        self.assertNotIn("approve", approver)
        self.assertIn("Pending", await page.run_next(own))
        await page.run_next(own)
        self.assertIn("x-tunnel-server-svc", (own / "of-1.2.yaml").read_text())
        self.assertIn("--enable-iptables=false", await self.show(world, SERVER))
        self.assertTrue(page.finished)

    async def test_manifests(self) -> None:
        """Install the manifests as documented, one overlay after the other, and remove them."""
        world = await self.make_world(nodes=ADDRESSES)
        await world.add_nodes(EDGE)
        await world.add_nodes(CLOUD, edge=False)
        own, etc = Path(self.directory, "own"), Path(self.directory, "etc")
        own.mkdir()
        connect = world.socket_path(SERVERS[0])
        replacements = {"cloud-1": CLOUD, "/etc/kubernetes": str(etc)}
        replacements |= {"/run/yurttunnel/connect.sock": connect}
        environment = self.environment(world, {})
        overlays = DEPLOY / "overlays"
        page = Guide(DEPLOY / "README.md", environment, replacements)
        dns, socket, tcp, monitoring = (
            Guide(overlays / name / "README.md", environment, replacements)
            for name in ("dns", "egress-selector", "egress-selector-tcp", "monitoring")
        )
        proxy = Guide(DEPLOY / "proxy" / "README.md", environment, replacements)

        await page.run_next(own)
        # The API of the tests has no policies, as one of a cluster before 1.30.
        text = yaml_with("newName: IMAGE", DEPLOY / "README.md")
        file = own / "kustomization.yaml"
        file.write_text(text.replace("- ../yurttunnel/deploy/components/approval-policy\n", ""))
        self.assertIn("successfully rolled out", await page.run_next(own))
        self.assertIn("IMAGE:0.1.0", await self.show(world, SERVER))
        text = yaml_with("deploy/components/iptables", DEPLOY / "README.md")
        file.write_text(text.replace("- ../yurttunnel/deploy/components/approval-policy\n", ""))
        await self.kubectl(world, "apply", "-k", str(own))
        self.assertIn("deleted", await page.run_next(own))
        await page.run_next(own)
        left = await self.kubectl(world, "get", "deployments,daemonsets", "-A", "-o", "name")
        self.assertEqual("", left)
        self.assertIn("configmap/yurt-tunnel-rules", await monitoring.run_next(self.checkout))

        await self.publish_records(world)
        seen = await dns.run_next(self.checkout)
        for what in (EDGE, CLOUD, await self.cluster_address(world, "yurt-tunnel-dns")):
            self.assertIn(what, seen)
        await socket.run_next(self.checkout)
        self.assertTrue((await socket.run_next(self.checkout)).startswith("s"))
        configuration = etc / "egress-selector" / "configuration.yaml"
        self.assertIn("udsName", configuration.read_text())
        seen = await tcp.run_next(self.checkout)
        service = "x-tunnel-server-internal-svc"
        self.assertIn(await self.cluster_address(world, service), seen)
        await tcp.run_next(self.checkout)
        self.assertIn("tlsConfig", configuration.read_text())
        await self.kubectl(world, "apply", "-f", "-", stdin=KUBE_PROXY)
        await proxy.run_next(self.checkout)
        self.assertIn("NotIn", await self.show(world, "daemonset/kube-proxy"))
        await self.kubectl(world, "apply", "-k", str(DEPLOY / "proxy-hub"))
        seen = await proxy.run_next(self.checkout)
        self.assertRegex(seen, "(?s)successfully rolled out.*deleted")
        run("iptables", "-t", "nat", "-N", "KUBE-PORTALS-HOST")
        self.assertIn("removed the rules of iptables", await proxy.run_next(self.checkout))
        await proxy.run_next(self.checkout)
        self.assertNotIn("NotIn", await self.show(world, "daemonset/kube-proxy"))

        for program in (*self.agents.values(), *self.servers):
            await program.stop(STOP_SECONDS)
        await dns.run_next(self.checkout)
        for each in (page, dns, socket, tcp, monitoring, proxy):
            self.assertTrue(each.finished)

    async def publish_records(self, world: World) -> None:
        """Have a server publish the records that the rollout of the name server needs."""
        overlay = str(self.checkout / "deploy" / "overlays" / "dns")
        await self.kubectl(world, "apply", "-k", overlay)
        await self.start_servers(world, "--enable-dns-controller=true")

        async def published() -> bool:
            found = await self.kubectl(world, "-n", NAMESPACE, "get", "configmaps", "-o", "name")
            return "configmap/yurt-tunnel-nodes" in found.split()

        await self.eventually(published, "the records are there", 30)

    async def cluster_address(self, world: World, service: str) -> str:
        """Return the address of a Service."""
        return json.loads(await self.show(world, f"service/{service}"))["spec"]["clusterIP"]

    async def show(self, world: World, what: str) -> str:
        """Return an object."""
        return await self.kubectl(world, "-n", NAMESPACE, "get", what, "-o", "json")

    def test_no_page_is_left_out(self) -> None:
        """Each page with commands for a cluster has a test that runs them."""
        found = {
            str(page.relative_to(ROOT))
            for page in (*DOCS.glob("**/*.md"), *DEPLOY.glob("**/*.md"))
            if any(CLUSTER in block.marks for block in blocks(page))
        }
        self.assertEqual(found, {*PAGES, *OTHERS})


def yaml_with(word: str, page: Path) -> str:
    """Return the only block of YAML on a page that contains a word."""
    [found] = [text for text in YAML.findall(page.read_text()) if word in text]
    return textwrap.dedent(found)
