"""Silent name servers, and names whose addresses change."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet import defer, reactor
from twisted.internet.defer import Deferred
from twisted.names import dns, error
from twisted.names.server import DNSServerFactory

from tests.e2e.clients import Echo
from tests.e2e.outages.gateway import Gateway
from tests.e2e.outages.site import SERVER, SiteTestCase
from tests.e2e.support import which

NAME = "tunnel.example"
SECOND = "fd77::22"
"""Another address of the server."""


class Names:
    """A name server's records; it does not respond while ``silent``."""

    def __init__(self) -> None:
        self.silent = True
        self.queries = 0
        self.ipv4: list[str] = []
        self.ipv6: list[str] = []

    def query(self, query: dns.Query, timeout=None) -> Deferred:
        """Respond to a query, as the resolvers of twisted.names do."""
        self.queries += 1
        if self.silent:
            return Deferred()
        if query.name.name.rstrip(b".").decode() != NAME:
            return defer.fail(error.DomainError())
        records = {dns.A: (dns.Record_A, self.ipv4), dns.AAAA: (dns.Record_AAAA, self.ipv6)}
        make, addresses = records.get(query.type, (None, []))
        answers = [
            dns.RRHeader(query.name.name, query.type, ttl=1, payload=make(address, ttl=1))
            for address in addresses
        ]
        return defer.succeed((answers, [], []))


class NameServerTests(SiteTestCase):
    """An agent that knows its server by name, with one name server."""

    server_extra = (
        *("--bind-address", "::", "--insecure-bind-address", "127.0.0.1"),
        *("--cert-dns-names", NAME),
    )

    def start_name_server(self) -> Names:
        """Start a name server in the cloud, until the end of the test."""
        names = Names()
        factory = DNSServerFactory(clients=[names])
        factory.noisy = False
        protocol = dns.DNSDatagramProtocol(factory, reactor=reactor)
        port = reactor.listenUDP(dns.PORT, protocol, interface=SERVER)
        self.addCleanup(port.stopListening)
        return names

    def make_resolving_agent(self):
        """Prepare an agent that uses only this name server."""
        configuration = os.path.join(self.directory, "resolv.conf")
        Path(configuration).write_text(f"nameserver {SERVER}\noptions timeout:1 attempts:1\n")
        agent = self.make_agent("edge-1", "--tunnelserver-addr", f"{NAME}:{self.server.agent_port}")
        mount = f'{which("mount")} --bind {configuration} /etc/resolv.conf && exec "$@"'
        agent.run_under(which("unshare"), "--mount", "sh", "-c", mount, "sh")
        return agent

    async def test_a_silent_address_of_several_is_left(self) -> None:
        """The address that accepts connections and never responds is not dialed first again."""
        names = self.start_name_server()
        names.silent, names.ipv4, names.ipv6 = False, [SERVER], [SECOND]
        silent = ("-p", "tcp", "-d", SECOND, "--tcp-flags", "PSH", "PSH", "-j", "DROP")
        Gateway(self.network, 6).add(*silent)
        agent = self.make_resolving_agent()
        agent.start()
        await agent.ready(60)

    async def test_silent_name_servers_block_nothing_and_new_addresses_are_found(self) -> None:
        """The agent waits and reports it, follows its server to another family, and streams
        continue."""
        names = self.start_name_server()
        agent = self.make_resolving_agent()
        agent.start()
        await self.eventually(lambda: names.queries > 0, "the name is asked for", 30)

        async def is_waiting_reported() -> bool:
            status, _ = await agent.get("/readyz")
            return status == 503 and NAME in agent.log

        await self.eventually(is_waiting_reported, "the agent tells that it waits", 30)

        names.ipv4 = [SERVER]
        names.silent = False
        await agent.ready(60)
        echo = self.listen_on("edge-1", Echo)
        await self.watch(self.server, agent)
        client = await self.echo("edge-1", echo)

        names.ipv4, names.ipv6 = [], [SECOND]
        reset = ("-p", "tcp", "-d", SERVER, "-j", "REJECT", "--reject-with", "tcp-reset")
        answer = Deferred.fromCoroutine(client.round_trip())
        self.gateway.add(*reset)
        await self.within(60, answer, "the stream goes on at the new address")
        [session] = await self.server.agents()
        self.assertIn("fd77::254", session["address"])
        self.assertEqual(await agent.metric("yurttunnel_agent_resumptions_total"), 1)
