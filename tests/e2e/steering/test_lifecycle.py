"""Rules are created when a server accepts connections, and removed after its end, clean or not."""

from __future__ import annotations

import contextlib
import os

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.internet.task import deferLater

from tests.e2e.programs import Program
from tests.e2e.steering.support import (
    BACKENDS,
    CLOUD_4,
    EDGE_4,
    EDGE_6,
    FAMILIES,
    SERVER,
    SteeringTestCase,
)
from tests.e2e.support import which
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS
from yurttunnel.steering.probe_schedule import MIN_PAUSE, RECHECK_SECONDS

_BUSY_SECONDS = 8.0
"""Seconds for detection and repair on a busy machine, in addition to the period."""

LEFT_BY_1_2 = f"""\
*nat
:TUNNEL-PORT-9999 - [0:0]
-F TUNNEL-PORT-10250
-A TUNNEL-PORT-10250 -d {EDGE_4}/32 -p tcp -m comment --comment \
"return request to access node directly" -m tcp --dport 10250 -j RETURN
-A TUNNEL-PORT-10250 -p tcp -m comment --comment "dnat to tunnel for access node" -m tcp \
--dport 10250 -j DNAT --to-destination 172.16.1.199:10263
-A TUNNEL-PORT -p tcp -m tcp --dport 9999 -m comment --comment "jump to port 9999" \
-j TUNNEL-PORT-9999
-A TUNNEL-PORT-9999 -p tcp -m comment --comment "dnat to tunnel for access node" -m tcp \
--dport 9999 -j DNAT --to-destination 172.16.1.199:10264
COMMIT
"""
"""Rules for a former cloud node, a former address of the server, and a former port (F2)."""


class LifeCycleTests(SteeringTestCase):
    """Clean and unclean starts and ends of the server."""

    async def test_killed_and_restarted(self) -> None:
        """After kill -9 the rules remain, and the next server corrects them with its first sync,
        whatever their state; the cleanup removes them all, and changes no other rules.
        """
        await self.steered_world("edge-1")
        self.host_uses("nft")
        self.network.run("cloud", "ipset", "create", "FOREIGN", "hash:ip")
        before = self.all_rules()
        server = await self.steer("--enable-iptables=true")
        await self.eventually_healthy(EDGE_4)
        await self.eventually_healthy(EDGE_6)
        made = self.all_rules()
        server.kill()
        self.assertEqual(self.all_rules(), made)

        self.network.run("cloud", "iptables-restore", "--noflush", stdin=LEFT_BY_1_2)
        self.network.run("cloud", "ipset", "flush", "YURTTUNNEL-EDGE6")
        again = await self.world.restarted(server)
        again.start()
        await self.hooked_until(again.ready(60))
        await self.connected([again], ["edge-1"])
        await self.eventually_healthy(EDGE_4)
        await self.eventually_healthy(EDGE_6)
        self.assertEqual(self.all_rules(), made)

        await self.agents["edge-1"].stop()
        again.kill()
        await self.clean_up()
        self.assertEqual(self.all_rules(), before)
        self.assertEqual(self.sets(), ["FOREIGN"])
        await self.clean_up()
        self.assertEqual(self.all_rules(), before)

    async def hooked_until(self, ready) -> None:
        """Wait, and require that the rules exist all the time (F4)."""
        waiting = Deferred.fromCoroutine(ready)
        while not waiting.called:
            self.assertIn("-A OUTPUT -p tcp", self.rules())
            self.assertIn("-A TUNNEL-PORT -p tcp -m tcp --dport 10250", self.rules())
            await deferLater(reactor, 0.05)
        await waiting

    async def clean_up(self) -> None:
        """Run ``--cleanup-iptables``, which must succeed."""
        cleaner = await self.world.server(SERVER, "--cleanup-iptables")
        cleaner.start()
        self.assertEqual(await cleaner.ended(30), 0, cleaner.log[-2000:])

    async def test_disturbed_by_others(self) -> None:
        """Flushed rules are restored long before the next period (F7), and that is reported."""
        await self.steered_world("edge-1")
        server = await self.steer("--enable-iptables=true")
        await self.eventually_healthy(EDGE_4)
        await self.eventually_healthy(EDGE_6)
        made = self.all_rules()
        self.network.run("cloud", "iptables", "-t", "nat", "-F")
        self.network.run("cloud", "ipset", "flush", "YURTTUNNEL-EDGE6")
        limit = RECHECK_SECONDS + _BUSY_SECONDS
        with contextlib.suppress(self.failureException):
            await self.eventually(lambda: self.all_rules() == made, "", limit, 0.2)
        self.assertEqual(self.all_rules(), made)
        await self.eventually_healthy(EDGE_4)
        await self.eventually_healthy(EDGE_6)

        async def is_counted() -> bool:
            name = "yurttunnel_server_steering_syncs_total"
            return await server.metric(name, result="repaired") >= 1

        # The repair is counted after all rules and sets are restored.
        await self.eventually(is_counted, "a repair is counted")

    async def test_flushed_after_a_change_of_nodes_with_nft(self) -> None:
        """A flush soon after a node has become a cloud or an edge node is repaired as fast (F7)."""
        await self.flushed_after_a_change_of_nodes("nft", MIN_PAUSE)

    async def test_flushed_after_a_change_of_nodes_with_legacy(self) -> None:
        """The same where the kernel has no counter of changes."""
        await self.flushed_after_a_change_of_nodes("legacy", RECHECK_SECONDS)

    async def flushed_after_a_change_of_nodes(self, backend: str, pause: float) -> None:
        """Change a node, then flush; flush again while writing rules fails, which is reported."""
        world = await self.steered_world("edge-1")
        self.host_uses(backend)
        server = await world.server(SERVER, "--enable-iptables=true")
        server.run_under("unshare", "--mount", "sh", "-c", 'exec "$@"', "sh")
        server.start()
        await world.publish_servers()
        agent = await self.edge_agent("edge-1")
        agent.start()
        await server.ready(60)
        await self.connected([server], ["edge-1"])
        await self.eventually_healthy(EDGE_4)
        # The age of the rules must not matter.
        await deferLater(reactor, 5.0)
        await world.relabel("cloud-2", "true")
        await self.eventually(lambda: CLOUD_4 in self.edge_set(), "the set has the node", 20, 0.1)
        made = self.own_rules()

        await deferLater(reactor, 2.0)
        self.flush(backend)
        limit = pause + _BUSY_SECONDS
        await self.eventually(lambda: self.own_rules() == made, "they are repaired", limit, 0.2)
        await self.eventually_healthy(EDGE_4)
        await self.until_reported(server, "steering: ok", 200)

        self.in_mounts_of(server, "mount --bind /dev/null {}")
        self.flush(backend)
        await self.until_reported(server, "steering: IPv4: reading the nat table", 200)
        answer = (await server.get("/readyz"))[1]
        self.assertNotIn("steering: ok", answer)
        page = await self.ask(EDGE_4)
        self.assertEqual(page.exit_status, 7, page)
        self.in_mounts_of(server, "umount {}")
        await self.eventually(lambda: self.own_rules() == made, "they are repaired", 40, 0.2)
        await self.until_reported(server, "steering: ok", 200)

    def own_rules(self) -> list[str]:
        """Return the server's own rules; those of others are not restored."""
        return [
            line
            for rules in self.all_rules().values()
            for line in rules.splitlines()
            if "TUNNEL" in line
        ]

    def flush(self, backend: str) -> None:
        """Remove all rules of the nat table, as an administrator may do."""
        self.network.run("cloud", f"iptables-{backend}", "-w", "20", "-t", "nat", "-F")

    def edge_set(self) -> str:
        """Return the listing of the set of edge addresses."""
        return self.network.run("cloud", "ipset", "list", "YURTTUNNEL-EDGE4")

    def in_mounts_of(self, program: Program, command: str) -> None:
        """Run a command for each file of iptables in the mount namespace of one program."""
        for path in self.iptables():
            self.network.run(
                "cloud",
                "nsenter",
                f"--mount=/proc/{program.pid}/ns/mnt",
                "sh",
                "-c",
                command.format(path),
            )

    async def test_rules_wait_for_the_listeners(self) -> None:
        """No rules redirect to the server before it has a certificate (F5)."""
        world = await self.steered_world("edge-1")
        await world.signer.stopService()
        server = await world.server(SERVER, "--enable-iptables=true")
        server.start()

        async def has_requested():
            return (await world.client.list(CERTIFICATE_SIGNING_REQUESTS))["items"]

        await self.eventually(has_requested, "it asks for certificates", 30)

        await self.until_reported(server, "listeners: not listening yet", 503)
        self.assertNotIn("TUNNEL", self.rules())
        self.assertEqual(self.sets(), [])
        world.signer.startService()
        await self.eventually_rules(lambda rules: "TUNNEL-PORT-10250" in rules, "rules appear")
        # As soon as rules exist the server responds, though without an agent only with an error.
        page = await self.ask(EDGE_4)
        self.assertEqual(page.status, 503, page)

    async def test_without_iptables(self) -> None:
        """Without the iptables program /readyz reports that, and everything else works."""
        await self.steered_world("edge-1")
        server = await self.world.server(SERVER, "--enable-iptables=true")
        hidden = " && ".join(f"mount --bind /dev/null {each}" for each in self.iptables())
        server.run_under("unshare", "--mount", "sh", "-c", f'{hidden} && exec "$@"', "sh")
        server.start()
        await self.world.publish_servers()
        agent = await self.edge_agent("edge-1")
        agent.start()
        await server.ready(60)
        await self.connected([server], ["edge-1"])

        answer = await self.until_reported(server, "iptables", 200)
        self.assertIn("install", answer)
        status, body = await self.world.request_kubelet(SERVER, "edge-1:10250", "/healthz")
        self.assertEqual((status, body), (200, "ok"))
        status, _ = await server.get("/healthz")
        self.assertEqual(status, 200)

    def iptables(self) -> set[str]:
        """Return the files of the iptables programs, which have many names."""
        return {
            os.path.realpath(which(f"{program}-{backend}"))
            for program in FAMILIES
            for backend in BACKENDS
        }

    async def until_reported(self, server: Program, what: str, status: int) -> str:
        """Wait until ``/readyz`` contains a text, with a status; return the response."""
        answers: list[tuple[int, str]] = []

        async def response():
            with contextlib.suppress(ConnectError):
                # The meta port may not listen yet.
                answers.append(await server.get("/readyz"))
            return bool(answers) and answers[-1][0] == status and what in answers[-1][1]

        try:
            await self.eventually(response, f"/readyz says {what!r}", 30, 0.1)
        except self.failureException as failure:
            raise self.failureException(f"{failure}, but {answers[-1:]}") from None
        return answers[-1][1]
