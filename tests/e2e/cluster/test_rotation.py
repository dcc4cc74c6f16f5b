"""Certificates and their authority are replaced under load."""

from __future__ import annotations

import sys
from operator import itemgetter
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from twisted.internet import reactor
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.utils import getProcessOutputAndValue

from tests.e2e.clients import Sink, connect
from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import AGENT_PORT, NODES, SECURE_PORT, SERVERS, World
from tests.e2e.crowds import Crowd, Trickle
from tests.e2e.programs import Program
from yurttunnel.pki.certificate_template import PROXY_CLIENT_PREFIX, SERVER_PREFIX
from yurttunnel.pki.cluster_identity import AGENT_PREFIX
from yurttunnel.pki.names import CALLER_NAME

STREAMS = 100
"""The number of streams that run all the time, in addition to a shell and a log."""

SHORT_LIFE = 25.0
"""Seconds for which a certificate is good; it is renewed when 2.5 to 7.5 of them are left."""
CHECK_SECONDS = 2.0
"""The interval of checks of the certificates in use, in seconds; each is in use for much longer."""
MAX_CHECK_SECONDS = 25.0
"""In which time a program has seen that the bundle is another: twice its interval, and more."""
RENEWED_SECONDS = 25.0

SHOWN = """
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[3])
context.check_hostname = False
context.set_alpn_protocols(["yurttunnel/1", "http/1.1"])
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    with context.wrap_socket(connection) as secured:
        sys.stdout.buffer.write(secured.getpeercert(binary_form=True))
"""
"""Prints the certificate of a server, if it is of an authority in a file."""


class Work:
    """A log followed from its first line, and a shell, both in one pod."""

    def __init__(self, case: ClusterTestCase, world: World, pod: str) -> None:
        self._case = case
        self._world = world
        self._pod = pod
        self._follow = case.start_kubectl(world.kubectl, "logs", "-f", pod)
        self._shell = case.start_kubectl(world.kubectl, "exec", "-i", pod, "--", "sh")
        self._round_trips = 0

    async def assert_progress(self) -> None:
        """Require that the shell responds and that the log continues."""
        self._round_trips += 1
        self._shell.transport.write(f"echo answer $((7 * {self._round_trips}))\n".encode())
        await self._shell.wait_for_output(rf"answer {7 * self._round_trips}\n")
        written = (await self._case.logs(self._world, self._pod)).strip()
        await self._follow.wait_for_output(rf"{written}\n")

    async def assert_complete(self) -> None:
        """Require that nothing was lost, and end both."""
        await self.assert_progress()
        self._shell.transport.write(b"exit 3\n")
        self._case.assertEqual((await self._shell.finished(10)).status, 3)
        self._follow.signal("INT")
        await self._follow.finished(10)
        self._case.assert_complete_log(bytes(self._follow.out))


class RotationTests(ClusterTestCase):
    """Rotation is not noticeable."""

    async def test_certificates(self):
        """Server and agent get new certificates repeatedly, and use them at once; sessions of the
        first ones continue after their expiry, and can be resumed."""
        world = await self.start_cluster("edge-1", signed_seconds=SHORT_LIFE)
        await self.run_pod(world, "web", "edge-1")
        sessions = await self.sessions()
        work = Work(self, world, "web")
        crowd = await self.crowd(world)
        seen = {holder: set() for holder in self.holders()}
        while min(len(ends) for ends in seen.values()) < 3:
            await work.assert_progress()
            for program, certificate in seen:
                seen[program, certificate].add(await expiry(program, certificate))
            await self.pause(CHECK_SECONDS)
        first = max(min(ends) for ends in seen.values())
        await self.eventually(
            lambda: reactor.seconds() > first, "the first certificates are over", SHORT_LIFE
        )
        for server in self.servers:
            end = await expiry(server, "server")
            for port in (AGENT_PORT, SECURE_PORT):
                shown = await self.shown(world, server, port)
                self.assertGreaterEqual(shown.not_valid_after_utc.timestamp(), end)
        self.assertEqual(await self.sessions(), sessions)
        await self.resume(world)
        await crowd.assert_progress()
        await crowd.assert_complete()
        await work.assert_complete()
        self.assertEqual(await self.sessions(), sessions)

    async def test_authority(self):
        """The cluster gets another authority, first in addition to the old one, then in its place.
        All certificates are then issued by the new one, and those of the old one are rejected."""
        world = await self.start_cluster("edge-1", "edge-2")
        await self.run_pod(world, "web", "edge-1")
        sessions = await self.sessions()
        work = Work(self, world, "web")
        crowd = await self.crowd(world)
        identities = world.identities
        old = identities.authority.certificate
        identities.client("caller", CALLER_NAME)
        self.assertEqual(await self.ask(world, "caller"), "200")

        successor = identities.add_authority()
        world.renew()
        await self.see_authorities(1)
        await work.assert_progress()
        identities.promote(successor)
        world.signer.authority = identities.signing_authority()
        world.renew()
        await work.assert_progress()
        identities.publish(successor.certificate)
        await self.see_authorities(2)
        await self.eventually(
            lambda: all(is_from(successor.certificate, path) for path in self.files(world)),
            "all certificates are from the new authority",
            RENEWED_SECONDS,
        )
        await work.assert_progress()

        for server in self.servers:
            for port in (AGENT_PORT, SECURE_PORT):
                await self.shown(world, server, port)
        self.assertRegex(await self.ask(world, "caller"), "alert unknown ca")
        identities.client("caller", CALLER_NAME)
        self.assertEqual(await self.ask(world, "caller"), "200")
        self.assertNotEqual(identities.authority.certificate, old)
        self.assertEqual(await self.sessions(), sessions)
        await self.resume(world)
        await crowd.assert_progress()
        await crowd.assert_complete()
        await world.add_nodes("edge-3")
        self.agents["edge-3"] = new = await world.agent("edge-3")
        new.start()
        await new.ready(30)
        await self.connected(self.servers, ["edge-3"])
        await self.run_pod(world, "on-the-new-one", "edge-3")
        self.assertRegex(await self.logs(world, "on-the-new-one"), r"tick \d+")
        await work.assert_complete()
        self.assertLess(set(sessions), set(await self.sessions()))

    # -- helpers -------------------------------------------------------------------------------

    async def crowd(self, world: World) -> Crowd:
        """Open many streams through the first server's CONNECT to the first node."""
        sink = self.listen(Sink, address=NODES["edge-1"])
        endpoint = UNIXClientEndpoint(reactor, world.socket_path(SERVERS[0]))

        async def open_one(client: Trickle) -> None:
            answer = await connect(endpoint, f"edge-1:{sink.port}", client)
            self.assertEqual(answer.status, 200, answer.body)
            self._end_peer_with_test(client)

        crowd = Crowd(self, sink, open_one)
        await crowd.open_all(STREAMS)
        return crowd

    def holders(self) -> list[tuple[Program, str]]:
        """Return all programs with the names of their certificates."""
        servers = [(one, name) for one in self.servers for name in ("server", "kubelet-client")]
        return servers + [(one, "agent") for one in self.agents.values()]

    def files(self, world: World) -> list[Path]:
        """Return the files of all current certificates."""
        prefixes = dict.fromkeys(SERVERS[:2], (SERVER_PREFIX, PROXY_CLIENT_PREFIX))
        prefixes |= dict.fromkeys(self.agents, (AGENT_PREFIX,))
        return [
            world.directory / f"pki-{name}" / f"{prefix}-current.pem"
            for name, each in prefixes.items()
            for prefix in each
        ]

    async def sessions(self) -> list[tuple[int, str, str, str]]:
        """Return an identification of all servers' sessions, to compare."""
        return [
            (number, entry["node"], entry["session"], entry["since"])
            for number, server in enumerate(self.servers)
            for entry in sorted(await server.agents(), key=itemgetter("node"))
        ]

    async def resume(self, world: World) -> None:
        """Close all connections of the first server's agents, and wait until they are resumed with
        the current certificates."""
        server = self.servers[0]
        before = {each["node"]: each["resumptions"] for each in await server.agents()}
        world.network.cut(SERVERS[0], AGENT_PORT)

        async def resumed():
            return all(
                each["connected"] and each["resumptions"] > before[each["node"]]
                for each in await server.agents()
            )

        await self.eventually(resumed, "the sessions are resumed", 20)

    async def see_authorities(self, count: int) -> None:
        """Wait until all programs have loaded the bundle that many times."""
        programs = [*self.servers, *self.agents.values()]
        await self.eventually(
            lambda: all(
                program.log.count("authorities has changed and is in use") == count
                for program in programs
            ),
            "all have taken up the bundle",
            MAX_CHECK_SECONDS,
        )

    async def shown(self, world: World, server: Program, port: int) -> x509.Certificate:
        """Get the certificate of a server's port, which must be issued by the current bundle."""
        arguments = ("-c", SHOWN, server.meta_host, str(port), str(world.identities.ca_path))
        out, error, status = await getProcessOutputAndValue(
            sys.executable, arguments, reactor=reactor
        )
        self.assertEqual(status, 0, error.decode())
        return x509.load_der_x509_certificate(out)

    async def ask(self, world: World, caller: str) -> str:
        """Request a node's metrics from a server with a certificate: return the status, or the
        error."""
        directory = world.identities.directory
        out, error, status = await getProcessOutputAndValue(
            "/usr/bin/curl",
            (
                # Its certificate is checked elsewhere.
                *("--silent", "--show-error", "--insecure"),
                *("--cert", str(directory / f"{caller}.crt")),
                *("--key", str(directory / f"{caller}.key")),
                *("--connect-to", f"::{SERVERS[0]}:{SECURE_PORT}"),
                *("--output", "/dev/null", "--write-out", "%{http_code}"),
                f"https://edge-1:{SECURE_PORT}/metrics",
            ),
            reactor=reactor,
        )
        return out.decode() if status == 0 else error.decode()


async def expiry(program: Program, certificate: str) -> float:
    """Return the expiry of a current certificate, in seconds since 1970."""
    who = "agent" if certificate == "agent" else "server"
    name = f"yurttunnel_{who}_certificate_expiry_timestamp_seconds"
    return await program.metric(name, certificate=certificate)


def is_from(authority: x509.Certificate, path: Path) -> bool:
    """Return whether the first certificate in a file is from ``authority``."""
    [certificate, *_] = x509.load_pem_x509_certificates(path.read_bytes())
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError):
        return False
    return True
