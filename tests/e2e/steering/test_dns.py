"""Names of nodes resolve to the server, by a ConfigMap for CoreDNS and a Service."""

from __future__ import annotations

import ipaddress

from twisted.internet import reactor

from tests.deploy.rendering import DEPLOY
from tests.e2e.network.witness import start_witness
from tests.e2e.steering.support import CLOUD_4, EDGE_4, SERVER, SteeringTestCase
from yurttunnel.kube.errors import NotFound
from yurttunnel.kube.resources import CONFIG_MAPS, SERVICES

NAMESPACE = "kube-system"
INTERNAL = "x-tunnel-server-internal-svc"
RECORDS = "yurt-tunnel-nodes"


class DnsTests(SteeringTestCase):
    """``--enable-dns-controller``; the test acts as CoreDNS and as kube-proxy."""

    async def test_names_resolve_to_the_tunnel(self) -> None:
        """Kubelets of edge nodes are reached through the Service, those of the cloud directly;
        other ports follow the ConfigMap, and pods that connect to the Service are served, too.
        """
        world = await self.dns_world()
        start_witness(self, reactor, self.network, "edge-1", EDGE_4, 9100)
        await self.steer("--enable-dns-controller=true")
        cluster_ip = await self.cluster_ip()
        desired = f"{CLOUD_4}\tcloud-2\n{cluster_ip}\tedge-1"
        await self.eventually_recorded("\n".join(sorted(desired.split("\n"))))
        await self.stand_for_kube_proxy()

        page = await self.by_record("edge-1", "--insecure", "--header", "Host: kubernetes.default")
        self.assertEqual((page.status, page.body), (200, "ok"), page)
        self.assertTrue(page.terminated, page)
        await self.run_pod(world, "web", "edge-1")
        await self.upgraded(str(cluster_ip), exec_status=101, unknown_pod_status=503)
        self.assertEqual(world.nodes["edge-1"].peers, [EDGE_4])
        page = await self.by_record("cloud-2", *self.verified())
        self.assertEqual((page.status, page.body), (200, "ok"), page)
        self.assertFalse(page.terminated, page)

        await world.set_proxy_ports({"http-proxy-ports": "9100"})
        await self.eventually_port(9100, {"name": "dnat-9100", "targetPort": 10264})
        await self.stand_for_kube_proxy()
        resolve = ("--resolve", f"edge-1:9100:{cluster_ip}")
        page = await self.curl("http://edge-1:9100/", *resolve)
        self.assertEqual(page.body, f"edge-1 {EDGE_4}")
        await world.set_proxy_ports({})
        await self.eventually_port(9100, None)

        # Changes of addresses and labels apply, and a name does not match as another's suffix.
        await world.relabel("edge-1", "false")
        await self.eventually_recorded(f"{CLOUD_4}\tcloud-2\n{EDGE_4}\tedge-1")

    async def test_pass_through_by_name(self) -> None:
        """With ``--passthrough-port`` TLS is between caller and kubelet: the node is found by the
        name in the ClientHello, or, for an upgrade without one, by its pod.
        """
        world = await self.dns_world()
        await self.steer("--enable-dns-controller=true", "--passthrough-port", "10270")
        await self.eventually_port(10250, {"targetPort": 10270})
        await self.eventually_recorded(
            f"{CLOUD_4}\tcloud-2\n{await self.cluster_ip()}\tedge-1", in_any_order=True
        )
        await self.stand_for_kube_proxy()
        page = await self.by_record("edge-1", *self.verified())
        self.assertEqual((page.status, page.body), (200, "ok"), page)
        self.assertFalse(page.terminated, page)
        await self.run_pod(world, "web", "edge-1")
        await self.upgraded(await self.cluster_ip(), exec_status=101, unknown_pod_status=503)

    async def test_unnamed_upgrades_are_refused(self) -> None:
        """With ``--unnamed-upgrades=refuse`` no path is used instead of a name, with pass-through
        or without; names still lead to the node.
        """
        world = await self.dns_world()
        await self.run_pod(world, "web", "edge-1")
        for flags in ((), ("--passthrough-port", "10270")):
            server = await self.steer(
                "--enable-dns-controller=true", "--unnamed-upgrades=refuse", *flags
            )
            port = {"targetPort": 10270 if flags else 10263}
            await self.eventually_port(10250, port)
            cluster_ip = await self.cluster_ip()
            await self.eventually_recorded(
                f"{CLOUD_4}\tcloud-2\n{cluster_ip}\tedge-1", in_any_order=True
            )
            await self.stand_for_kube_proxy()
            await self.upgraded(cluster_ip, exec_status=403, unknown_pod_status=403)
            page = await self.by_record("edge-1", *(self.verified() if flags else ()))
            self.assertEqual((page.status, page.body), (200, "ok"), page)
            await server.stop()

    async def upgraded(self, cluster_ip: str, *, exec_status: int, unknown_pod_status: int) -> None:
        """Request an upgrade for exec, like a kube-apiserver that does not verify kubelets.

        Its TLS has no SNI (``DialURL`` of k8s.io/apimachinery pkg/util/proxy/dial.go), and its
        ``Host`` is that of its own client.
        """
        for path, status in (
            ("/exec/default/web/main?output=1&command=true", exec_status),
            ("/exec/default/none/main?output=1&command=true", unknown_pod_status),
            ("/run/default/web/main?cmd=true", 403),
        ):
            page = await self.curl(
                f"https://{cluster_ip}:10250{path}",
                *("--insecure", *self.world.caller_flags(), "--request", "POST"),
                # An upgraded connection lasts until then.
                *("--max-time", "8" if status == 101 else "15"),
                *("--header", "Connection: Upgrade", "--header", "Upgrade: SPDY/3.1"),
                *("--header", "X-Stream-Protocol-Version: v4.channel.k8s.io"),
                *("--header", "Host: edge-9:10250"),
            )
            self.assertEqual((page.status, page.terminated), (status, True), page)

    async def dns_world(self):
        """Start the cluster, with the overlay's permissions for the server."""
        world = await self.steered_world("edge-1")
        rights = str(DEPLOY / "overlays" / "dns" / "rbac.yaml")
        await world.kubectl.output("apply", "-f", rights)
        return world

    async def records(self) -> str:
        """Read the records."""
        try:
            found = await self.world.client.get(CONFIG_MAPS, RECORDS, NAMESPACE)
        except NotFound:
            return ""
        return found.get("data", {}).get("tunnel-nodes", "")

    async def eventually_recorded(self, text: str, in_any_order: bool = False) -> None:
        """Wait until the records are as given."""

        async def recorded():
            found = await self.records()
            if in_any_order:
                return sorted(found.split("\n")) == sorted(text.split("\n"))
            return found == text

        await self.eventually(recorded, f"{text!r} is recorded", 30, 0.1)

    async def internal_service(self) -> dict:
        """Read the Service."""
        return await self.world.client.get(SERVICES, INTERNAL, NAMESPACE)

    async def cluster_ip(self) -> str:
        """Return the address of the Service."""
        return str(ipaddress.ip_address((await self.internal_service())["spec"]["clusterIP"]))

    async def eventually_port(self, number: int, desired: dict | None) -> None:
        """Wait until a port of the Service is as desired; ``None``: until it is absent."""

        async def is_published():
            ports = (await self.internal_service())["spec"]["ports"]
            found = [port for port in ports if port["port"] == number]
            if desired is None:
                return not found
            return bool(found) and found[0].items() >= desired.items()

        await self.eventually(is_published, f"port {number} is {desired}", 20, 0.1)

    async def stand_for_kube_proxy(self) -> None:
        """Redirect the ports of the Service to the server, on the cloud's machine."""
        spec = (await self.internal_service())["spec"]
        rules = ["*nat", "-F OUTPUT"]
        rules += [
            f"-A OUTPUT -d {spec['clusterIP']} -p tcp --dport {port['port']}"
            f" -j DNAT --to-destination {SERVER}:{port['targetPort']}"
            for port in spec["ports"]
        ]
        rule_set = "\n".join([*rules, "COMMIT", ""])
        self.network.run("cloud", "iptables-restore", "--noflush", stdin=rule_set)

    async def by_record(self, name: str, *flags: str):
        """Send a request to a node's kubelet by its name, which the records resolve."""
        lines = [line.split("\t") for line in (await self.records()).split("\n")]
        [address] = [address for address, node in lines if node == name]
        return await self.by_name(name, address, 10250, *flags)
