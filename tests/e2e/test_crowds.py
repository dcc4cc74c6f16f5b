"""Many slow, silent, idle or half-open connections do not affect others."""

from __future__ import annotations

import contextlib
import json
import ssl
from functools import partial
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.threads import deferToThread

from benchmarks.ports import free_ports
from tests.e2e.certificates import AGENT_PROTOCOL, authority_of, connect_with_tls, identity_of
from tests.e2e.clients import (
    Echo,
    EchoClient,
    HttpTarget,
    Peer,
    RequestClient,
    Source,
    Target,
    connect_directly,
)
from tests.e2e.hostile import SLOW_CALLERS, CrowdTestCase, SlowCrowd
from tests.e2e.programs import Program, Tunnel
from tests.e2e.stopwatch import Deadline, Stopwatch
from tests.e2e.support import TwistedTransports
from tests.e2e.tls_callers import tls_download
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.enrolment_server import MAX_CONNECTIONS
from yurttunnel.server.frontends.connect import MAX_HANDSHAKES, MAX_UNREAD_HEADS
from yurttunnel.server.frontends.kubelet.listeners import SETTINGS
from yurttunnel.tunnel.connection import MAX_UNFINISHED

DEADLINE = 10.0
"""Seconds for TLS handshake and HELLO, and for a CONNECT head."""

CLIENT_HELLO = bytes.fromhex("16030102000100 01fc0303")
"""How a ClientHello of 512 bytes begins."""

MIB = 1024 * 1024


class SlowLorisTests(CrowdTestCase):
    """A connection that makes no progress is closed, without effects on others."""

    async def test_slow_handshake_hello_and_head_are_cut_off(self) -> None:
        """Silence, half a ClientHello, no HELLO, half a HELLO and a dripping head are all
        closed.
        """
        tunnel = await self.start_tunnel()
        await self.still_serves(tunnel)
        before = tunnel.server.descriptors()
        trusted = authority_of(tunnel.server.state).certificate
        identity = identity_of(tunnel.agent.state)
        port = tunnel.server.agent_port

        async def tls(text: bytes) -> Peer:
            return await connect_with_tls(reactor, port, RequestClient(text), trusted, identity)

        head = b"CONNECT edge-1:80 HTTP/1.1\r\nX-Slow: "
        unix = UNIXClientEndpoint(reactor, tunnel.socket_path)
        slow = {
            "silence on the agents' port": await self.dial(port, RequestClient()),
            "half a ClientHello": await self.dial(
                port, RequestClient(bytes.fromhex("16030102000100"))
            ),
            "no HELLO": await tls(b""),
            "a byte of HELLO": await tls(b"\x00"),
            "silence on the CONNECT socket": await connect_directly(unix, RequestClient()),
            "a dripping head": await connect_directly(unix, RequestClient(head)),
        }
        for peer in slow.values():
            self._end_peer_with_test(peer)
        dripping = slow["a dripping head"]
        deadline = Deadline(reactor, DEADLINE + 6)

        def still_open(peer: Peer) -> bool:
            return not peer.read_ended and peer.lost_reason is None

        while not deadline.passed and any(map(still_open, slow.values())):
            if still_open(dripping):
                dripping.transport.write(b"x")
            await self.pause(0.5)
        alive = [what for what, peer in slow.items() if still_open(peer)]
        self.assertEqual(alive, [])
        await self.still_serves(tunnel)
        await self.descriptors_return(tunnel.server, before)

    async def test_a_thousand_slow_callers_of_each_port_disturb_nobody(self) -> None:
        """Handshakes and heads at one byte every five seconds are closed at their timeouts.

        A dial in the meantime is as quick as ever, and unauthenticated callers are not in the audit
        log.
        """
        port = free_ports.take()
        audit = Path(self.directory, "audit.jsonl")
        tunnel = await self.start_tunnel(
            server_extra=("--connect-endpoint", f"ssl:{port}", "--audit-log-path", str(audit))
        )
        echo = self.listen(Echo)
        await self.is_quick(tunnel, echo)
        before = tunnel.server.descriptors()
        server = tunnel.server
        crowds = [
            self.crowd(server.agent_port, CLIENT_HELLO),
            self.crowd(server.secure_port, CLIENT_HELLO),
            self.crowd(server.insecure_port, b"GET / HTTP/1.1\r\nX-Slow: "),
            self.crowd(port, CLIENT_HELLO),
            self.crowd(tunnel.socket_path, b"CONNECT edge-1:80 HTTP/1.1\r\nX-Slow: "),
        ]
        await self.outlived(tunnel, echo, crowds)
        await self.descriptors_return(server, before)
        callers = {json.loads(line)["who"] for line in audit.read_text().splitlines()}
        self.assertEqual([who for who in callers if not who.startswith("unix:")], [])
        lines = [
            line for line in server.log.splitlines() if "TLS handshake took longer than" in line
        ]
        self.assertEqual(len(lines), 1, lines)

    async def test_a_thousand_slow_hellos_disturb_nobody(self) -> None:
        """The same for a thousand with a node's certificate and an unfinished HELLO."""
        tunnel = await self.start_tunnel()
        echo = self.listen(Echo)
        await self.is_quick(tunnel, echo)
        before = tunnel.server.descriptors()
        context = ssl.create_default_context(cafile=f"{tunnel.server.state}/ca.crt")
        context.check_hostname = False
        context.load_cert_chain(f"{tunnel.agent.state}/node.pem")
        context.set_alpn_protocols([AGENT_PROTOCOL.decode()])
        crowd = await deferToThread(self.crowd, tunnel.server.agent_port, b"\0", context)
        await self.outlived(tunnel, echo, [crowd])
        await self.descriptors_return(tunnel.server, before)

    async def test_strangers_do_not_shut_callers_out_of_a_tls_endpoint(self) -> None:
        """More silent connections than the limit do not affect a caller with a certificate."""
        port = free_ports.take()
        audit = Path(self.directory, "audit.jsonl")
        tunnel = await self.start_tunnel(
            server_extra=("--connect-endpoint", f"ssl:{port}", "--audit-log-path", str(audit))
        )
        source = self.listen(lambda: Source(100_000))
        crowd = self.crowd(port, b"", size=MAX_HANDSHAKES + 100)
        await self.eventually(lambda: crowd.open <= MAX_HANDSHAKES, "the oldest ones are cut off")
        watch = Stopwatch(reactor)
        download = partial(tls_download, tunnel.server.state, port, source.port)
        digest = await self.within(10, deferToThread(download), "the download")
        self.assertLess(watch.seconds(), 2)
        self.assertEqual(digest, source.peers[0].payload.digest)
        await self.eventually(lambda: audit.exists() and audit.read_text(), "the line is written")
        (line,) = audit.read_text().splitlines()
        self.assertEqual(json.loads(line)["bytes_to_caller"], 100_000)
        log = tunnel.server.log.splitlines()
        lines = [line for line in log if "newer ones have not finished" in line]
        self.assertEqual(len(lines), 1, lines)

    async def test_silent_callers_do_not_exclude_others(self) -> None:
        """More silent or idle callers than the limit do not affect others."""
        tunnel = await self.start_tunnel()
        await self.still_serves(tunnel)
        web = self.listen(HttpTarget)
        ask = b"GET / HTTP/1.1\r\nHost: edge-9:10255\r\n\r\n"
        await self.overflow(tunnel.server.insecure_port, ask, SETTINGS.max_connections)
        await self.overflow(tunnel.socket_path, b"", MAX_UNREAD_HEADS)
        self.assertEqual(await self.asked(tunnel, web), b"200")
        await self.still_serves(tunnel)

    async def overflow(self, where: int | str, start: bytes, limit: int) -> None:
        """Open more connections than ``limit``, and require that the excess is closed."""
        crowd = await deferToThread(partial(self.crowd, where, start, size=limit + 100))
        await self.eventually(lambda: crowd.open <= limit, "the oldest ones are cut off")
        self.assertGreater(crowd.open, limit - 100)

    async def test_strangers_do_not_shut_agents_out(self) -> None:
        """Half-open handshakes and enrolment requests above the limits do not affect agents."""
        tunnel = await self.start_tunnel()
        await tunnel.agent.stop()
        port = tunnel.server.agent_port
        context = ssl.create_default_context(cafile=f"{tunnel.server.state}/ca.crt")
        context.check_hostname = False
        context.set_alpn_protocols([ENROLMENT_PROTOCOL.decode()])
        enrolling = partial(self.crowd, port, b"\0", context, MAX_CONNECTIONS + 100)
        await deferToThread(enrolling)
        for start in (client_hello(context), CLIENT_HELLO, b""):
            half_open = self.crowd(port, start, size=MAX_UNFINISHED + 100)
        await self.eventually(lambda: half_open.open <= MAX_UNFINISHED, "the oldest are cut off")
        for agent in (tunnel.agent, tunnel.another_agent(node="edge-2", state="E")):
            agent.start()

        async def both_are_in() -> bool:
            half_open.fill()
            agents = await tunnel.server.agents()
            return {each["node"] for each in agents if each["connected"]} == {"edge-1", "edge-2"}

        await self.eventually(both_are_in, "both agents are connected", 30, 0.2)

    async def outlived(self, tunnel: Tunnel, echo: Target, crowds: list[SlowCrowd]) -> None:
        """Require that all crowds are closed in time, without effects on others."""
        deadline = Deadline(reactor, DEADLINE + 6)
        drips = reactor.seconds()
        while any(crowd.open for crowd in crowds):
            self.assertFalse(deadline.passed, [crowd.open for crowd in crowds])
            if reactor.seconds() >= drips:
                drips += 5
                for crowd in crowds:
                    crowd.drip()
            await self.is_quick(tunnel, echo)
            await self.pause(0.5)
        for crowd in crowds:
            crowd.close()

    async def is_quick(self, tunnel: Tunnel, echo: Target) -> None:
        """Require that a dial and a round trip take less than two seconds."""
        watch = Stopwatch(reactor)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        self.assertLess(watch.seconds(), 2)
        client.drop()


class MetaPortTests(CrowdTestCase):
    """A probe is answered within its second, whatever connections a meta port has."""

    async def test_idle_connections_and_slow_senders(self) -> None:
        """64, and 1,000, that send nothing, or a byte of their request now and then."""
        tunnel = await self.start_tunnel()
        for program in (tunnel.server, tunnel.agent):
            for size in (64, SLOW_CALLERS):
                for start in (b"", b"GET /healthz HTTP/1.1\r\nX-Slow: "):
                    crowd = self.crowd(program.meta_port, start, size=size)
                    await self.answers_probes(program)
                    crowd.drip()
                    await self.answers_probes(program)
                    crowd.close()

    async def test_slow_readers(self) -> None:
        """1,000 that request a page and do not read it."""
        tunnel = await self.start_tunnel()
        for program in (tunnel.server, tunnel.agent):
            self.crowd(program.meta_port, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await self.answers_probes(program)

    async def test_through_the_tunnel(self) -> None:
        """Callers do not reach the agent's meta port; if they are allowed to, probes still work."""
        target = self.listen(Echo)
        tunnel = self.make_tunnel(forwards=(target.port,))
        meta = tunnel.agent.meta_port
        forward = free_ports.take()
        tunnel.server.arguments += ["--forward", f"127.0.0.1:{forward}=edge-1/127.0.0.1:{meta}"]
        await tunnel.start()
        answer = await self.connect(tunnel, f"127.0.0.1:{meta}", RequestClient())
        self.assertEqual(answer.status, 403, answer.body)
        self.assertIn(f"--allow-destination 127.0.0.1:{meta} would allow it", answer.body)
        crowd = self.crowd(forward, b"", size=64)
        await self.eventually(lambda: not crowd.open, "all are refused")
        await tunnel.agent.stop()
        tunnel.agent.arguments += ["--allow-destination", f"127.0.0.1:{meta}"]
        tunnel.agent.start()
        await tunnel.agent.ready()
        for size in (64, 300):
            self.crowd(forward, b"GET /healthz HTTP/1.1\r\nX-Slow: ", size=size)
            await self.answers_probes(tunnel.agent)

    async def answers_probes(self, program: Program) -> None:
        """Require responses for each of the kubelet's probes, several times."""
        for _ in range(5):
            for path in ("/healthz", "/readyz"):
                status, body = await self.within(1, program.get(path), f"a probe of {path}")
                self.assertEqual(status, 200, body)


class SharesTests(CrowdTestCase):
    """Callers that keep many streams open leave some to others."""

    async def test_a_forward_full_of_idle_connections(self) -> None:
        """999 of them use up its share; a second forward, CONNECT and a request still work."""
        echo = self.listen(Echo)
        web = self.listen(HttpTarget)
        tunnel = await self.start_tunnel(forwards=(echo.port, echo.port))
        first, second = tunnel.forward_ports
        crowd = self.crowd(first, b"x", size=999)
        refused = "yurttunnel_server_refused_streams_total"

        async def is_full() -> bool:
            return await tunnel.server.metric(refused, entry="forward", share="caller") > 0

        await self.eventually(is_full, "the share is used up", 20, 0.2)
        await self.eventually(lambda: crowd.open < 600, "those beyond it are reset", 20)
        client = await self.dial(second, EchoClient(reactor))
        await client.round_trip()
        await self.still_serves(tunnel)
        self.assertEqual(await self.asked(tunnel, web), b"200")
        (session,) = await tunnel.server.agents()
        by_entry = session["streams_by_entry"]
        self.assertGreater(by_entry["forward"], 400)
        self.assertIn("close some, or reuse connections", tunnel.server.log)


class HalfOpenContract:
    """Unfinished TLS handshakes use memory only while they last."""

    async def test_memory_is_released(self) -> None:
        """After 1,024 on each TLS port, silent and after a complete ClientHello, twice each."""
        port = free_ports.take()
        tunnel = await self.start_tunnel(server_extra=("--connect-endpoint", f"ssl:{port}"))
        await self.still_serves(tunnel)
        server = tunnel.server
        before = server.resident()
        context = ssl.create_default_context(cafile=f"{server.state}/ca.crt")
        context.set_alpn_protocols(["http/1.1", AGENT_PROTOCOL.decode()])
        for where in (server.agent_port, server.secure_port, port):
            for start in (b"", client_hello(context)) * 2:
                crowd = self.crowd(where, start, size=1024)
                await self.pause(1)
                crowd.close()
        await self.eventually(
            lambda: server.resident() < before + 30 * MIB, "the memory is given back", 60, 0.5
        )
        await self.still_serves(tunnel)


class TwistedHalfOpenTests(HalfOpenContract, TwistedTransports, CrowdTestCase):
    """With Twisted's transports, whose TLS allocates memory at once."""


class HalfOpenTests(HalfOpenContract, CrowdTestCase):
    """With this project's transports."""

    async def test_without_a_client_hello_there_is_no_memory(self) -> None:
        """Before its first record, a connection costs the server no TLS state."""
        tunnel = await self.start_tunnel()
        await self.still_serves(tunnel)
        server = tunnel.server
        before = server.resident()
        for where in (server.agent_port, server.secure_port):
            for start in (b"", CLIENT_HELLO):
                crowd = self.crowd(where, start, size=1024)
                await self.eventually(lambda: len(server.descriptors()) > 1024, "all are accepted")
                self.assertLess(server.resident(), before + 20 * MIB)
                crowd.close()


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return a complete ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()
