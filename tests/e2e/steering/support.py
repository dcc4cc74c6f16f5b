"""The base class for tests of steering: a cluster on several machines, and callers of nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.utils import getProcessOutputAndValue

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import SERVERS, World
from tests.e2e.network.sites import Sites
from tests.e2e.programs import Program
from tests.e2e.support import which

SERVER = SERVERS[0]
EDGE_4, EDGE_6 = Sites.addresses["edge-1"]
CLOUD_4, CLOUD_6 = Sites.addresses["cloud-2"]
OTHER_4, OTHER_6 = Sites.addresses["other"]

FAMILIES = ("iptables", "ip6tables")
BACKENDS = ("nft", "legacy")

_NODES = ("edge-1", "edge-2", "cloud-2")

_SYNC_SECONDS = 20.0
"""Seconds within which an event takes effect on a busy machine; an idle one needs almost none."""


@dataclass(frozen=True)
class Page:
    """The result of curl; ``subject`` is that of the server's certificate, if any."""

    exit_status: int
    status: int
    body: str
    subject: str
    complaints: str

    @property
    def terminated(self) -> bool:
        """Whether TLS was terminated by the server, and not by the kubelet."""
        return self.subject.endswith("CN=system:node:tunnel-server")


class SteeringTestCase(ClusterTestCase):
    """A test case with a cluster whose edge nodes are unreachable from the cloud."""

    async def steered_world(self, *edge_nodes: str) -> World:
        """Start the cluster without the tunnel: edge nodes, and the cloud node ``cloud-2``."""
        for program in ("curl", "ipset", *(f"{f}-{b}-save" for f in FAMILIES for b in BACKENDS)):
            which(program)
        self.network = Sites()
        self.addCleanup(self.network.close)
        nodes = {name: Sites.addresses[name] for name in _NODES}
        self.world = await self.make_world(network=self.network, nodes=nodes)
        self.world.servers = [SERVER]
        await self.world.add_nodes(*edge_nodes)
        await self.world.add_nodes("cloud-2", edge=False)
        self.agents: dict[str, Program] = {}
        return self.world

    async def steer(self, *flags: str, agents: tuple[str, ...] = ("edge-1",)) -> Program:
        """Start agents, and a server in the cloud with these flags; wait until all are ready."""
        server = await self.world.server(SERVER, *flags)
        await self.world.publish_servers()
        for node in agents:
            if node not in self.agents:
                self.agents[node] = await self.edge_agent(node)
        for program in (server, *self.agents.values()):
            if not program.running:
                program.start()
        everyone = (server, *self.agents.values())
        await gatherResults([Deferred.fromCoroutine(each.ready(60)) for each in everyone])
        await self.connected([server], agents)
        return server

    async def edge_agent(self, node: str, *flags: str) -> Program:
        """Prepare the agent of a node, which registers both of its addresses."""
        ipv4, ipv6 = Sites.addresses[node]
        identifiers = f"host={node}&ipv4={ipv4}&ipv6={ipv6}"
        return await self.world.agent(node, "--agent-identifiers", identifiers, *flags)

    # Callers

    async def curl(self, url: str, *flags: str, machine: str = "cloud") -> Page:
        """Request a page with curl on a machine."""
        arguments = ("--silent", "--show-error", "--verbose", "--max-time", "15")
        arguments += ("--write-out", "\n%{http_code}", *flags, url)
        with self.network.inside(machine):
            asked = getProcessOutputAndValue(which("curl"), arguments, reactor=reactor)
        out, errors, exit_status = await asked
        body, _, status = out.decode().rpartition("\n")
        complaints = errors.decode()
        subject = re.search(
            r"^\* Server certificate:\n\*  subject: (.*)$", complaints, re.MULTILINE
        )
        return Page(exit_status, int(status), body, subject[1] if subject else "", complaints)

    async def ask(
        self,
        address: str,
        *flags: str,
        port: int = 10250,
        machine: str = "cloud",
        caller: bool = True,
    ) -> Page:
        """Request ``/healthz`` of the kubelet at an address, with kube-apiserver's certificate.

        The kubelet's certificate is verified only if ``flags`` request it.
        """
        host = f"[{address}]" if ":" in address else address
        proof = self.world.caller_flags() if caller else ()
        return await self.curl(
            f"https://{host}:{port}/healthz",
            *(*proof, *(flags or ("--insecure",))),
            machine=machine,
        )

    async def by_name(self, name: str, address: str, port: int, *flags: str) -> Page:
        """Request it by the name of the kubelet's node, which resolves to ``address``."""
        return await self.ask(
            name, "--resolve", f"{name}:{port}:{address}", *(flags or ("--insecure",)), port=port
        )

    def verified(self) -> tuple[str, ...]:
        """Return the flags by which curl trusts only the cluster's authority."""
        return ("--cacert", str(self.world.identities.ca_path))

    async def assert_healthy(self, address: str, *flags: str, machine: str = "cloud") -> Page:
        """Require that the kubelet at an address is healthy; return the page."""
        page = await self.ask(address, *flags, machine=machine)
        self.assertEqual((page.status, page.body), (200, "ok"), f"{address}: {page}")
        return page

    async def eventually_healthy(self, address: str, *flags: str, machine: str = "cloud") -> None:
        """Wait until the kubelet at an address is healthy."""

        async def is_healthy():
            return (await self.ask(address, *flags, machine=machine)).status == 200

        await self.eventually(is_healthy, f"{address} is reached", _SYNC_SECONDS, 0.2)

    async def eventually_refused(self, address: str, machine: str = "cloud") -> None:
        """Wait until connections to an address of a node fail."""

        async def is_refused():
            return (await self.ask(address, machine=machine)).exit_status == 7

        await self.eventually(is_refused, f"{address} is not reached", _SYNC_SECONDS, 0.2)

    async def eventually_rules(self, condition, what: str, program: str = "iptables") -> str:
        """Wait until the nat table of the cloud's machine is as desired; return it."""

        def is_met():
            rules = self.rules(program)
            return rules if condition(rules) else None

        return await self.eventually(is_met, what, _SYNC_SECONDS, 0.1)

    # State of the machine

    def host_uses(self, backend: str) -> None:
        """Create others' rules in one of the firewalls: kubelet's canary, and permanent rules."""
        for family in FAMILIES:
            program = f"{family}-{backend}"
            which(program)
            for rule in (
                ("mangle", "-N", "KUBE-KUBELET-CANARY"),
                ("nat", "-N", "KUBE-SERVICES"),
                ("nat", "-A", "OUTPUT", "-m", "comment", "--comment", "kubernetes service portals"),
                ("nat", "-A", "KUBE-SERVICES", "-p", "tcp", "--dport", "10251", "-j", "RETURN"),
                ("filter", "-A", "INPUT", "-p", "tcp", "--dport", "9", "-j", "DROP"),
            ):
                table, change, chain, *rest = rule
                jump = ("-j", "KUBE-SERVICES") if chain == "OUTPUT" else ()
                words = ("-t", table, change, chain, *rest, *jump)
                self.network.run("cloud", program, "-w", "20", *words)

    def rules(self, program: str = "iptables") -> str:
        """Return the nat table of the cloud's machine, without counters and times."""
        return without_counts(self.network.run("cloud", f"{program}-save", "-t", "nat"))

    def all_rules(self) -> dict[str, str]:
        """Return all tables of both families, in both firewalls."""
        programs = [f"{family}-{backend}" for family in FAMILIES for backend in BACKENDS]
        return {
            program: without_counts(self.network.run("cloud", f"{program}-save"))
            for program in programs
        }

    def sets(self) -> list[str]:
        """Return the names of the ipsets of the cloud's machine."""
        return self.network.run("cloud", "ipset", "list", "-name").split()


def without_counts(saved: str) -> str:
    """Remove packet counters and times from the output of iptables-save."""
    lines = [line for line in saved.splitlines() if not line.startswith("#")]
    return "\n".join(re.sub(r" \[\d+:\d+\]$", "", line) for line in lines)
