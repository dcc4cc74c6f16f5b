"""Two sites behind routers that have the same private addresses, at one server."""

from __future__ import annotations

from twisted.internet import reactor

from benchmarks.ports import free_ports
from tests.e2e.clients import Echo, EchoClient
from tests.e2e.programs import Agent
from tests.e2e.support import EndToEndTestCase

ADDRESS = "192.168.1.20"
"""Of the node on either site."""

AMBIGUOUS = (
    f"{ADDRESS} is the address of several nodes: edge-1, edge-2; request one of them by its name"
)


class TwoSitesTests(EndToEndTestCase):
    """Two nodes enrol with the same address, which reaches neither; names reach both."""

    async def test_the_same_address(self) -> None:
        """A caller by address gets an error with the names, even if one node is disconnected."""
        targets = {node: self.listen(Echo) for node in ("edge-1", "edge-2")}
        ports = {node: free_ports.take() for node in targets}
        forwards = [
            ("--forward", f"{ports[node]}={node}/127.0.0.1:{target.port}")
            for node, target in targets.items()
        ]
        tunnel = self.make_tunnel(
            server_extra=tuple(word for forward in forwards for word in forward),
            agent_extra=self.flags(targets["edge-1"].port),
        )
        await tunnel.start()
        other: Agent = tunnel.another_agent(
            node="edge-2", state="B", extra=self.flags(targets["edge-2"].port)
        )
        other.start()
        await other.ready()

        # Each may dial its own target only.
        for port in ports.values():
            client = await self.dial(port, EchoClient(reactor))
            await self.within(10, client.round_trip(), "an echo answers")
        await self.refused(tunnel)
        await other.stop()
        await self.refused(tunnel)

    def flags(self, port: int) -> tuple[str, ...]:
        """Return the flags of a node that may dial a port of this machine."""
        return ("--node-ip", ADDRESS, "--allow-destination", f"127.0.0.1:{port}")

    async def refused(self, tunnel) -> None:
        """Require that a call by address is refused, with the names of both nodes."""
        answer = await self.connect(tunnel, f"{ADDRESS}:22", EchoClient(reactor))
        self.assertEqual((400, AMBIGUOUS), (answer.status, answer.body.strip()))
