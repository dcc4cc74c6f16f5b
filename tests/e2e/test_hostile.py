"""Wrong, hostile and unlucky input: a coded answer, nothing crashes, nothing leaks."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import ssl
import struct
from functools import partial
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, UNIXClientEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SkipTest

from benchmarks.ports import free_ports
from tests.e2e.certificates import (
    AGENT_PROTOCOL,
    authority_of,
    connect_with_tls,
    identity_of,
)
from tests.e2e.clients import (
    Echo,
    EchoClient,
    HttpTarget,
    Peer,
    Question,
    Source,
    Target,
    connect_directly,
)
from tests.e2e.programs import ROOT, Program, Tunnel
from tests.e2e.stopwatch import Stopwatch
from tests.e2e.support import EndToEndTestCase, TwistedTransports, copy_state, which
from tests.e2e.tls_callers import tls_download
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.enrolment_server import MAX_CONNECTIONS
from yurttunnel.server.frontends.connect import MAX_HANDSHAKES, MAX_UNREAD_HEADS
from yurttunnel.server.frontends.kubelet.listeners import SETTINGS
from yurttunnel.tunnel.connection import MAX_UNFINISHED

DEADLINE = 10.0
"""Seconds for TLS handshake and HELLO, and for a CONNECT head."""

DIAL_DEADLINE = 15.0
"""Seconds for a dial, from OPEN to OK or FAIL."""

SLOW_CALLERS = 1000
"""Slow connections to each port at a time."""

CLIENT_HELLO = bytes.fromhex("16030102000100 01fc0303")
"""How a ClientHello of 512 bytes begins."""

MIB = 1024 * 1024

DESCRIPTORS = 12_000
"""What the test and the server need for the connections of all slow callers."""


CLOSED = """
from zope.interface import implementer
from yurttunnel.http.errors import RequestFailed
from yurttunnel.server.frontends.calls import IGate
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware, IMiddlewareMaker


@implementer(IMiddleware, IGate)
class Closed:
    def wrap(self, handler):
        return handler

    def admit(self, call):
        if call.port == 22 or call.flag.startswith("--forward"):
            raise RequestFailed(403, f"{call.kind} is closed for {call.serving_node}")


@implementer(IMiddlewareMaker)
class Maker:
    name = "closed"
    informers = ()

    def make(self, clock, informers):
        return Closed()


maker = Maker()
"""
"""A plugin that closes a port, and all forwards."""


class HostileTestCase(EndToEndTestCase):
    """A tunnel that has to serve after whatever has been done to it."""

    timeout = 90

    async def still_serves(self, tunnel: Tunnel) -> None:
        """Require that both programs run, say so, and carry a round trip."""
        for program in (tunnel.server, tunnel.agent):
            status, body = await program.get("/readyz")
            self.assertEqual(status, 200, body)
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        client.transport.loseConnection()
        await client.when_lost()


def unanswered(port: int) -> int:
    """How many connections to a loopback port wait for the answer to their SYN."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return sum(row[2] == f"0100007F:{port:04X}" and row[3] == "02" for row in rows)


class DestinationTests(HostileTestCase):
    """What a caller of CONNECT hears when there is no connection."""

    async def test_each_failure_has_its_status_and_a_sentence(self) -> None:
        """400, 403, 502, 503: each with a body of one line that names what was wanted."""
        tunnel = await self.start_tunnel()
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            refused = closed.getsockname()[1]
            to_edge = {"X-Tunnel-Proxy-Host": "edge-1"}
            cases = [
                (f"127.0.0.1:{refused}", {}, 502, "refused"),
                (f"edge-1:{refused}", {}, 502, "refused"),
                ("192.0.2.1:80", to_edge, 403, "192.0.2.1"),
                ("127.0.0.2:80", to_edge, 403, "127.0.0.2"),
                ("edge-9:80", {}, 503, "edge-9"),
                ("127.0.0.1:80", {"X-Tunnel-Proxy-Host": "edge-9"}, 503, "edge-9"),
                ("10.9.8.7:80", {}, 503, "10.9.8.7"),
                ("edge-1", {}, 400, "edge-1"),
                ("edge-1:0", {}, 400, "0"),
                ("edge-1:65536", {}, 400, "65536"),
                ("edge-1:port", {}, 400, "port"),
            ]
            for authority, headers, status, words in cases:
                answer = await self.connect(tunnel, authority, Question(), headers)
                self.assertEqual(answer.status, status, f"{authority}: {answer.body}")
                self.assertIn(words, answer.body, authority)
                self.assertEqual(len(answer.body.strip().splitlines()), 1, answer.body)
                headers = {**headers, "Accept": "application/json, */*"}
                answer = await self.connect(tunnel, authority, Question(), headers)
                self.assertEqual(answer.status, status, authority)
                document = json.loads(answer.body)
                self.assertEqual((document["kind"], document["code"]), ("Status", status))
                self.assertIn(words, document["message"])
        await self.still_serves(tunnel)

    async def test_a_caller_reaches_what_it_has_a_permission_for(self) -> None:
        """A user of the socket gets what --allow-connect names for it, and 403 for all else."""
        with socket.create_server(("127.0.0.1", 0)) as target:
            port = target.getsockname()[1]
            user = os.getuid()
            tunnel = await self.start_tunnel(
                server_extra=(
                    *("--allow-connect", f"user:{user}=edge-1/127.0.0.1:{port}"),
                    *("--allow-connect", f"user:{user + 1}=*/*:*"),
                    *("--allow-connect", "address:127.0.0.1=*/*:*"),
                )
            )
            answer = await self.connect(tunnel, f"127.0.0.1:{port}", Question())
            self.assertEqual(answer.status, 200, answer.body)
            for authority in (f"edge-1:{port}", "127.0.0.1:1", "edge-9:80"):
                answer = await self.connect(tunnel, authority, Question())
                self.assertEqual(answer.status, 403, f"{authority}: {answer.body}")
                self.assertIn(f"user:{user} may not reach", answer.body)

    async def test_a_middleware_refuses_calls(self) -> None:
        """One that provides IGate is asked about CONNECT and forwards: 403, and a reset."""
        plugins = Path(self.directory, "plugins")
        module = plugins / "twisted" / "plugins" / "closed.py"
        module.parent.mkdir(parents=True)
        module.write_text(CLOSED)
        echo = self.listen(Echo)
        tunnel = self.make_tunnel(
            forwards=(echo.port,), server_extra=("--middleware", "closed"), proxied=None
        )
        tunnel.server.begin_with("env", f"PYTHONPATH={ROOT}:{plugins}")
        await tunnel.start()
        await self.still_serves(tunnel)
        answer = await self.connect(tunnel, "edge-1:22", Question())
        self.assertEqual(
            (answer.status, answer.body.strip()), (403, "connect is closed for edge-1")
        )
        address = ("127.0.0.1", tunnel.forward_ports[0])

        def read() -> bytes:
            with socket.create_connection(address, timeout=10) as caller:
                return caller.recv(1)

        await self.assertFailure(deferToThread(read), ConnectionResetError)
        await self.eventually(
            lambda: "forward is closed for edge-1" in tunnel.server.log, "the log says why"
        )

    async def test_a_black_holed_target_is_a_504(self) -> None:
        """A target that drops every SYN costs the dial deadline, not more, and only its caller."""
        tunnel = await self.start_tunnel()
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        # A listening socket whose queue of unaccepted connections is full drops further SYNs.
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            fillers = []
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
                fillers.append(filler)
            port = listener.getsockname()[1]
            asked = reactor.seconds()
            dial = Deferred.fromCoroutine(self.connect(tunnel, f"127.0.0.1:{port}", Question()))
            await self.still_serves(tunnel)
            answer = await self.within(DIAL_DEADLINE + 5, dial, "the dial is answered")
            print(f"\nblack hole answered after {reactor.seconds() - asked:.1f} s")
            self.assertEqual(answer.status, 504, answer.body)
            self.assertIn(str(port), answer.body)
            for filler in fillers:
                filler.close()
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)

    async def test_a_caller_that_leaves_during_a_dial_cancels_it(self) -> None:
        """The agent gives a pending dial up when its caller has gone: no descriptor stays."""
        tunnel = await self.start_tunnel()
        await self.still_serves(tunnel)
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            port = listener.getsockname()[1]
            waiting = unanswered(port)
            endpoint = UNIXClientEndpoint(reactor, tunnel.socket_path)
            request = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            caller = await connect_directly(endpoint, Question(request))
            await self.eventually(lambda: unanswered(port) > waiting, "the agent dials")
            caller.drop()
            await caller.when_lost()
            await self.eventually(lambda: unanswered(port) <= waiting, "the dial is given up", 5)
            for program, descriptors in before:
                await self.descriptors_return(program, descriptors)
            for filler in fillers:
                filler.close()

    async def test_a_forward_to_nowhere_closes_the_callers_connection(self) -> None:
        """Refused target and absent agent: the caller's connection ends, and others live on."""
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            tunnel = await self.start_tunnel(forwards=(closed.getsockname()[1],))
            await self.hangs_up(tunnel.forward_ports[0])
            await self.still_serves(tunnel)
            await tunnel.agent.stop()
            await self.hangs_up(tunnel.forward_ports[0])

    async def hangs_up(self, port: int) -> None:
        """Require that a forward ends a connection without an answer."""
        try:
            client = await self.dial(port, Question(b"anybody?"))
        except ConnectError:
            return  # The reset can be there before the client knows that it is connected.
        await self.within(5, client.when_lost(), "the connection ends")
        self.assertEqual(client.answer, b"")


class CrowdTestCase(HostileTestCase):
    """A tunnel with crowds of connections."""

    async def setUp(self) -> None:
        """Have enough file descriptors, in the programs too."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= hard < DESCRIPTORS:
            raise SkipTest(f"a process may have only {hard} file descriptors (ulimit -Hn)")
        if 0 <= soft < DESCRIPTORS:
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
            self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        await super().setUp()

    def crowd(
        self, where: int | str, start: bytes, context=None, size: int = SLOW_CALLERS
    ) -> SlowCrowd:
        """Connect a crowd; it ends with the test."""
        crowd = SlowCrowd(where, start, context, size)
        self.addCleanup(crowd.close)
        return crowd

    async def asked(self, tunnel: Tunnel, web: Target) -> bytes:
        """Ask for a page of ``web`` by the port for requests, and return its status."""
        output, errors, status = await self.run_command(
            *("curl", "-sS", "--noproxy", "*", "--max-time", "10", "-o", "/dev/null"),
            *("-w", "%{http_code}", "-H", f"Host: 127.0.0.1:{web.port}"),
            f"http://127.0.0.1:{tunnel.server.insecure_port}/",
        )
        self.assertEqual(status, 0, errors)
        return output


class SlowLorisTests(CrowdTestCase):
    """Whoever never gets to the point loses the connection, and nobody else notices."""

    async def test_slow_handshake_hello_and_head_are_cut_off(self) -> None:
        """Silence, half a ClientHello, no HELLO, half a HELLO and a dripping head all end."""
        tunnel = await self.start_tunnel()
        await self.still_serves(tunnel)
        before = tunnel.server.descriptors()
        trusted = authority_of(tunnel.server.state).certificate
        identity = identity_of(tunnel.agent.state)
        port = tunnel.server.agent_port

        async def tls(text: bytes) -> Peer:
            return await connect_with_tls(reactor, port, Question(text), trusted, identity)

        head = b"CONNECT edge-1:80 HTTP/1.1\r\nX-Slow: "
        unix = UNIXClientEndpoint(reactor, tunnel.socket_path)
        slow = {
            "silence on the agents' port": await self.dial(port, Question()),
            "half a ClientHello": await self.dial(port, Question(bytes.fromhex("16030102000100"))),
            "no HELLO": await tls(b""),
            "a byte of HELLO": await tls(b"\x00"),
            "silence on the CONNECT socket": await connect_directly(unix, Question()),
            "a dripping head": await connect_directly(unix, Question(head)),
        }
        for peer in slow.values():
            self._end_peer_with_test(peer)
        dripping = slow["a dripping head"]
        deadline = reactor.seconds() + DEADLINE + 6

        def still_open(peer: Peer) -> bool:
            return not peer.read_ended and peer.lost_reason is None

        while reactor.seconds() < deadline and any(map(still_open, slow.values())):
            if still_open(dripping):
                dripping.transport.write(b"x")
            await self.pause(0.5)
        alive = [what for what, peer in slow.items() if still_open(peer)]
        self.assertEqual(alive, [])
        await self.still_serves(tunnel)
        await self.descriptors_return(tunnel.server, before)

    async def test_a_thousand_slow_callers_of_each_port_disturb_nobody(self) -> None:
        """Handshakes and heads of which a byte comes every five seconds end when theirs is over.

        A dial in the meantime is as quick as ever, and who has not said who it is has no line in
        the audit log.
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
        lines = [line for line in server.log.splitlines() if "TLS handshake was not done" in line]
        self.assertEqual(len(lines), 1, lines)

    async def test_a_thousand_slow_hellos_disturb_nobody(self) -> None:
        """The same of a thousand that have a node's certificate, and never end their HELLO."""
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
        """More silent connections than there may be cost a caller with a certificate nothing."""
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
        lines = [line for line in tunnel.server.log.splitlines() if "is cut off" in line]
        self.assertEqual(len(lines), 1, lines)

    async def test_callers_that_ask_nothing_shut_nobody_out(self) -> None:
        """More than there may be that idle behind a request, or are silent, cost others nothing."""
        tunnel = await self.start_tunnel()
        await self.still_serves(tunnel)
        web = self.listen(HttpTarget)
        ask = b"GET / HTTP/1.1\r\nHost: edge-9:10255\r\n\r\n"
        await self.overflow(tunnel.server.insecure_port, ask, SETTINGS.max_connections)
        await self.overflow(tunnel.socket_path, b"", MAX_UNREAD_HEADS)
        self.assertEqual(await self.asked(tunnel, web), b"200")
        await self.still_serves(tunnel)

    async def overflow(self, where: int | str, start: bytes, most: int) -> None:
        """Connect more than ``most`` that stay, and require that the others are cut off."""
        crowd = await deferToThread(partial(self.crowd, where, start, size=most + 100))
        await self.eventually(lambda: crowd.open <= most, "the oldest ones are cut off")
        self.assertGreater(crowd.open, most - 100)

    async def test_strangers_do_not_shut_agents_out(self) -> None:
        """Half-open handshakes and requests for enrolment do not, more of them than may be."""
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
        """Require that all crowds are cut off in time, and that nobody notices them till then."""
        deadline = reactor.seconds() + DEADLINE + 6
        drips = reactor.seconds()
        while any(crowd.open for crowd in crowds):
            self.assertLess(reactor.seconds(), deadline, [crowd.open for crowd in crowds])
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
    """Whatever holds the connections of a meta port, a probe has its answer within its second."""

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
        """1,000 that ask for a page and read nothing of it."""
        tunnel = await self.start_tunnel()
        for program in (tunnel.server, tunnel.agent):
            self.crowd(program.meta_port, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await self.answers_probes(program)

    async def test_through_the_tunnel(self) -> None:
        """Callers do not reach the agent's meta port, and where they are let in harm no probe."""
        target = self.listen(Echo)
        tunnel = self.make_tunnel(forwards=(target.port,))
        meta = tunnel.agent.meta_port
        forward = free_ports.take()
        tunnel.server.arguments += ["--forward", f"127.0.0.1:{forward}=edge-1/127.0.0.1:{meta}"]
        await tunnel.start()
        answer = await self.connect(tunnel, f"127.0.0.1:{meta}", Question())
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
        """Require an answer of each page that kubelets ask for, a few times."""
        for _ in range(5):
            for path in ("/healthz", "/readyz"):
                status, body = await self.within(1, program.get(path), f"a probe of {path}")
                self.assertEqual(status, 200, body)


class SharesTests(CrowdTestCase):
    """Whoever opens streams and keeps them leaves some to others."""

    async def test_a_forward_full_of_idle_connections(self) -> None:
        """999 of them take its share, and a second forward, CONNECT and a request get through."""
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
        self.assertIn("close some, or use connections again", tunnel.server.log)


class HalfOpenContract:
    """TLS handshakes that never end take memory only while they last."""

    timeout = 180

    async def test_the_memory_comes_back(self) -> None:
        """After 1,024 on each port under TLS, silent and after a whole ClientHello, twice each."""
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
    """Over Twisted's transports, whose TLS takes its memory at once."""


class HalfOpenTests(HalfOpenContract, CrowdTestCase):
    """Over those of this project."""

    async def test_without_a_client_hello_there_is_no_memory(self) -> None:
        """Who has not sent its first record costs the server a connection, and no TLS."""
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
    """Return a whole ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


class SlowCrowd:
    """Connections to a loopback port or a Unix socket that begin with ``start``.

    Each :meth:`drip` sends one byte more. With ``context`` they speak TLS. They need as many file
    descriptors in the test and in the program.
    """

    def __init__(
        self, where: int | str, start: bytes, context: ssl.SSLContext | None, size: int
    ) -> None:
        self._where, self._start, self._context, self._size = where, start, context, size
        self._open: set[socket.socket] = set()
        self.fill()

    def fill(self) -> None:
        """Connect as many as have been ended."""
        for _ in range(self._size - self.open):
            connection = _connected(self._where)
            if self._context is not None:
                connection = self._context.wrap_socket(connection)
            connection.sendall(self._start)
            connection.setblocking(False)
            self._open.add(connection)

    @property
    def open(self) -> int:
        """How many have not been ended."""
        for connection in tuple(self._open):
            try:
                ended = not connection.recv(4096)
            except (BlockingIOError, ssl.SSLWantReadError):
                ended = False
            except OSError:
                ended = True
            if ended:
                connection.close()
                self._open.discard(connection)
        return len(self._open)

    def drip(self) -> None:
        """Send a byte on each that has not been ended."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.send(b"x")

    def close(self) -> None:
        """End the others."""
        for connection in self._open:
            connection.close()
        self._open.clear()


def _connected(where: int | str) -> socket.socket:
    if isinstance(where, int):
        return socket.create_connection(("127.0.0.1", where), timeout=20)
    connection = socket.socket(socket.AF_UNIX)
    # A socket that does not wait is refused (EAGAIN) where the queue is full (unix(7)), and one
    # with a timeout of Python's does not.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 20, 0))
    connection.connect(where)
    return connection


class GarbageTests(HostileTestCase):
    """Bytes that mean nothing, on every port."""

    async def test_garbage_on_every_port_is_survived(self) -> None:
        """Noise, HTTP to TLS, TLS to HTTP, nothing at all: answered or closed, never a crash."""
        tunnel = await self.start_tunnel(forwards=(1,))
        await self.still_serves(tunnel)
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        noise = [
            b"",
            bytes(range(256)) * 256,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            bytes.fromhex("160301020001000200030303") + os.urandom(500),
            b"\x00" * 70000,
            b"CONNECT edge-1:80 HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
            b"CONNECT " + b"e" * 70_000 + b":80 HTTP/1.1\r\n\r\n",
            b"CONNECT edge-1:80\x00 HTTP/1.1\r\n\r\n",
            b"CONNECT edge-1:80 HTTP/1.1\r\nX-Tunnel-Proxy-Host: a\rb\r\n\r\n",
            b"connect edge-1:80 HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
        unix = UNIXClientEndpoint(reactor, tunnel.socket_path)
        doors = [unix] + [
            TCP4ClientEndpoint(reactor, "127.0.0.1", port)
            for port in (
                tunnel.server.agent_port,
                tunnel.server.meta_port,
                tunnel.agent.meta_port,
                tunnel.forward_ports[0],
            )
        ]
        for door in doors:
            for text in noise:
                try:
                    peer = await connect_directly(door, Question(text, finish=True))
                except ConnectError:
                    # The forward leads nowhere: its reset may come before the client knows
                    # that it is connected.
                    self.assertIs(door, doors[-1])
                    continue
                self._end_peer_with_test(peer)
                await self.within(
                    DEADLINE + 5,
                    peer.when_ended(),
                    f"{text[:40]!r} is answered or closed",
                )
                self.assertNotIn(b" 200 Connection", peer.answer)
                peer.drop()
                await peer.when_lost()
        await self.still_serves(tunnel)
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)

    async def test_garbage_after_the_handshake_ends_that_connection_only(self) -> None:
        """A peer with a good certificate that speaks nonsense loses its connection."""
        tunnel = await self.start_tunnel()
        trusted = authority_of(tunnel.server.state).certificate
        identity = identity_of(tunnel.agent.state)
        for text in (os.urandom(5000), b"\xff" * 5000, b"\x00" * 5000):
            peer = await connect_with_tls(
                reactor, tunnel.server.agent_port, Question(text), trusted, identity
            )
            self._end_peer_with_test(peer)
            await self.within(DEADLINE + 5, peer.when_lost(), "the connection ends")
        await self.still_serves(tunnel)

    async def test_a_burst_of_half_done_requests_leaves_nothing(self) -> None:
        """Five hundred callers that vanish in the middle of CONNECT leave no descriptor."""
        tunnel = await self.start_tunnel()
        echo = self.listen(Echo)
        await self.still_serves(tunnel)
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        request = f"CONNECT 127.0.0.1:{echo.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        unix = UNIXClientEndpoint(reactor, tunnel.socket_path)

        async def vanish(number: int) -> None:
            text = request[: number % (len(request) + 1)] if number % 2 else request
            peer = await connect_directly(unix, Question(text))
            peer.drop()
            await peer.when_lost()

        for batch in range(10):
            numbers = range(batch * 50, batch * 50 + 50)
            await gatherResults([Deferred.fromCoroutine(vanish(n)) for n in numbers])
        await self.still_serves(tunnel)
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)


class StateDirectoryTests(HostileTestCase):
    """A state directory that cannot be used ends the start with one line."""

    async def refused(self, server: Program, *words: str) -> None:
        """Require a non-zero exit and a log that says what, without a traceback."""
        server.start()
        status = await server.ended(20)
        self.assertGreater(status, 0, server.log)
        for word in words:
            self.assertIn(word, server.log)
        self.assertEqual(server.complaints(), [], server.log)

    async def test_a_file_in_its_place_is_named(self) -> None:
        """A plain file where the directory is due."""
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state="file")
        with open(server.state, "w"):
            pass
        await self.refused(server, server.state)

    async def test_what_is_not_ours_is_named(self) -> None:
        """A link in its place, another user's directory or key, and a place open to all."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give files away")
        tunnel = self.make_tunnel()
        tunnel.server.start()
        await tunnel.server.ready()
        token = shutil.copy(tunnel.server.token_path, f"{self.directory}/token")
        await tunnel.server.stop()

        def programs(name: str) -> list[Program]:
            ours = {"state": name, "token_path": token}
            return [tunnel.another_server(state=name), tunnel.another_agent(**ours)]

        for program in programs("link"):
            if not os.path.lexists(program.state):
                os.symlink(tunnel.server.state, program.state)
            await self.refused(program, f"--state-dir: {program.state} is a symbolic link")
        for program in programs("foreign"):
            os.makedirs(program.state, 0o700, exist_ok=True)
            os.chown(program.state, 12345, 12345)
            await self.refused(program, f"--state-dir: {program.state} belongs to another user")
        copy_state(tunnel.server.state, f"{self.directory}/key")
        os.chown(f"{self.directory}/key/ca.key", 12345, 12345)
        await self.refused(programs("key")[0], "/key/ca.key belongs to another user")
        os.chmod(self.directory, 0o777)
        for program in programs("open"):
            await self.refused(program, f"everybody can replace what is in {self.directory} (mode")
        os.chmod(self.directory, 0o700)
        agent = programs("A5")[1]
        os.chown(token, 12345, 12345)
        await self.refused(agent, f"--join-token-file {token}: it belongs to another user")

    async def test_a_second_process_is_told_which_one_has_it(self) -> None:
        """Of servers and of agents; the first one goes on, and its end lets the next one in."""
        tunnel = await self.start_tunnel()
        again = tunnel.another_agent()
        for first, second in ((tunnel.server, tunnel.successor()), (tunnel.agent, again)):
            await self.refused(second, "--state-dir: ", f"is in use by process {first.pid},")
        await self.still_serves(tunnel)
        tunnel.agent.kill()
        await tunnel.agent.ended(5)
        third = tunnel.another_agent()
        third.start()
        await third.ready()

    async def test_a_directory_that_cannot_be_read_is_named(self) -> None:
        """No permission, also for a root without its privileges."""
        prefix: tuple[str, ...] = ()
        if os.geteuid() == 0:
            drop = "--bounding-set=-dac_override,-dac_read_search"
            prefix = (which("setpriv"), drop)
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state="closed", prefix=prefix)
        os.mkdir(server.state, 0o000)
        self.addCleanup(os.chmod, server.state, 0o700)
        await self.refused(server, server.state)

    async def test_a_broken_authority_is_named(self) -> None:
        """A CA certificate that is not one is not silently replaced."""
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state="broken")
        os.mkdir(server.state, 0o700)
        path = os.path.join(server.state, "ca.crt")
        with open(path, "w") as file:
            file.write("not a certificate\n")
        await self.refused(server, "ca.crt")
        with open(path) as file:
            self.assertEqual(file.read(), "not a certificate\n")

    async def test_an_agent_names_its_state_directory_and_token_file(self) -> None:
        """The agent does the same, and names a token file that is not there."""
        tunnel = self.make_tunnel()
        token = os.path.join(self.directory, "token")
        with open(token, "w", opener=partial(os.open, mode=0o600)) as file:
            file.write(f"{'a' * 16}.{'b' * 32}.sha256:{'c' * 64}\n")
        agent = tunnel.another_agent(state="file", token_path=token)
        with open(agent.state, "w"):
            pass
        await self.refused(agent, agent.state)
        missing = os.path.join(self.directory, "no-such-token")
        agent = tunnel.another_agent(state="A3", token_path=missing)
        await self.refused(agent, "join-token", missing)
