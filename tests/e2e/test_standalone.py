"""Two commands on one machine make a working tunnel, and exit normally."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct

from twisted.internet import reactor
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.threads import deferToThread

from benchmarks.ports import free_ports, is_free
from tests.e2e.clients import (
    Download,
    Echo,
    EchoClient,
    HttpTarget,
    RequestClient,
    Source,
    connect,
)
from tests.e2e.programs import UNLIMITED_DRAIN, Program, Server
from tests.e2e.support import EndToEndTestCase
from yurttunnel.pki.authority import request_certificate
from yurttunnel.pki.contexts import ENROLMENT_PROTOCOL
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.enrolment_messages import EnrolmentRequest
from yurttunnel.pki.token import JoinToken

DEFAULT_PORTS = (10262, 10263, 10264, 10265, 10266, 9100, 8000)


class StandaloneTestCase(EndToEndTestCase):
    """A test case with the two commands of docs/standalone.md, without any further flag."""

    extra: tuple[str, ...] = ()
    """Further flags of both commands; who has some has other ports, too."""

    def commands(self, suffix: str = "") -> tuple[Program, Program, int, int]:
        """Return server, agent, forward port and target port: the default ones if they are free.

        ``suffix`` is appended to the names of the state directories and logs.
        """
        state, agent_state = f"{self.directory}/S{suffix}", f"{self.directory}/A{suffix}"
        server_flags = list(self.extra)
        agent_flags = list(self.extra)
        ports = list(DEFAULT_PORTS)
        # Two tests at a time cannot both have them.
        if self.extra or not all(is_free(port) for port in ports):
            ports = [free_ports.take() for _ in ports]
            for flag, port in zip(
                ("tunnel-agent-connect-port", "secure-port", "insecure-port", "meta-port"),
                ports,
                strict=False,
            ):
                server_flags += [f"--{flag}", str(port)]
            agent_flags += ["--meta-port", str(ports[4])]
        agents, _, _, server_meta, agent_meta, forward, target = ports
        server = Program(
            reactor,
            [
                "yurttunnel-server", "--standalone", "--state-dir", state,
                "--bind-address", "127.0.0.1", "--connect-endpoint", f"unix:{state}/connect.sock",
                "--forward", f"127.0.0.1:{forward}=edge-1/127.0.0.1:{target}", *server_flags,
            ],
            f"{self.directory}/server{suffix}.log",
            server_meta,
        )  # fmt: skip
        agent = Program(
            reactor,
            [
                "yurttunnel-agent", "--standalone", "--state-dir", agent_state,
                "--node-name", "edge-1", "--node-ip", "127.0.0.1",
                "--tunnelserver-addr", f"127.0.0.1:{agents}",
                "--join-token-file", f"{state}/join-token", *agent_flags,
            ],
            f"{self.directory}/agent{suffix}.log",
            agent_meta,
        )  # fmt: skip
        self.addCleanup(server.kill)
        self.addCleanup(agent.kill)
        return server, agent, forward, target


class StandaloneTests(StandaloneTestCase):
    """The two commands work as docs/standalone.md says."""

    async def test_two_commands_make_a_tunnel_and_sigterm_ends_them(self) -> None:
        """Curl gets its answer through the forward, CONNECT by name and by address; both stop."""
        server, agent, forward, target_port = self.commands()
        self.listen(HttpTarget, target_port)
        server.start()
        await server.ready()
        agent.start()
        await agent.ready()

        socket_path = f"{self.directory}/S/connect.sock"
        url = f"http://127.0.0.1:{forward}/"
        output, errors, status = await self.run_command(
            "curl", "-sS", "--noproxy", "*", "--max-time", "10", url
        )
        self.assertEqual((output, status), (HttpTarget.BODY, 0), errors)
        get = b"GET / HTTP/1.0\r\n\r\n"
        for host in ("edge-1", "127.0.0.1"):
            question = RequestClient(get)
            endpoint = UNIXClientEndpoint(reactor, socket_path)
            answer = await connect(endpoint, f"{host}:{target_port}", question)
            self.assertEqual(answer.status, 200, answer.body)
            await question.when_read_ended()
            self.assertIn(HttpTarget.BODY, question.answer)
            question.drop()
            await question.when_lost()

        self.assertIn(await agent.stop(), (0, -signal.SIGTERM))
        self.assertIn(await server.stop(), (0, -signal.SIGTERM))
        self.assertEqual(server.forbidden_log_lines(), [], server.log)
        self.assertEqual(agent.forbidden_log_lines(), [], agent.log)
        self.assertFalse(os.path.exists(socket_path))


class TwistedStandaloneTests(StandaloneTests):
    """The same over Twisted's own transports."""

    extra = ("--transport", "twisted")


class TwoCommandsTests(EndToEndTestCase):
    """Further situations of a first user."""

    async def test_curl_reaches_the_node_through_its_proxy_option(self) -> None:
        """With a CONNECT endpoint on TCP, ``curl --proxytunnel`` works by name and address."""
        target = self.listen(HttpTarget)
        port = free_ports.take()
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        await self.start_tunnel(server_extra=("--connect-endpoint", endpoint))
        for host in ("edge-1", "127.0.0.1"):
            output, errors, status = await self.run_command(
                "curl", "-sS", "--max-time", "10", "--noproxy", "", "--proxytunnel",
                "--proxy", f"http://127.0.0.1:{port}", f"http://{host}:{target.port}/",
            )  # fmt: skip
            self.assertEqual((output, status), (HttpTarget.BODY, 0), errors)

    async def test_agents_lists_the_node_with_its_figures(self) -> None:
        """``/agents`` names node, address, certificate expiry and traffic, and only this node."""
        target = self.listen(HttpTarget)
        tunnel = await self.start_tunnel(forwards=(target.port,))
        question = await self.dial(
            tunnel.forward_ports[0], RequestClient(b"GET / HTTP/1.0\r\n\r\n")
        )
        await question.when_read_ended()
        (entry,) = await tunnel.server.agents()
        self.assertEqual(entry["node"], "edge-1")
        self.assertIs(entry["connected"], True)
        self.assertTrue(entry["certificate_expiry"])
        self.assertGreater(entry["bytes_received"], len(HttpTarget.BODY))

    async def test_both_restart_on_their_state_without_the_token(self) -> None:
        """After a restart of both, the agent reconnects with its own certificate."""
        target = self.listen(HttpTarget)
        tunnel = await self.start_tunnel(forwards=(target.port,))
        await tunnel.agent.stop()
        await tunnel.server.stop()
        tunnel.server.start()
        await tunnel.server.ready()
        again = tunnel.another_agent(token_path=None)
        again.start()
        await again.ready()
        question = await self.dial(
            tunnel.forward_ports[0], RequestClient(b"GET / HTTP/1.0\r\n\r\n")
        )
        await question.when_read_ended()
        self.assertIn(HttpTarget.BODY, question.answer)

    async def test_an_agent_started_first_waits_for_its_server(self) -> None:
        """An enrolled agent without a server keeps trying and is ready soon after the server."""
        tunnel = await self.start_tunnel()
        await tunnel.agent.stop()
        await tunnel.server.stop()
        again = tunnel.another_agent(token_path=None)
        again.start()
        await self.eventually(lambda: meta_answers(again), "the agent's meta port answers", 15)
        status, body = await again.get("/readyz")
        self.assertEqual(status, 503, body)
        tunnel.server.start()
        await again.ready()

    async def test_a_second_server_on_the_same_ports_names_port_and_flag(self) -> None:
        """It exits non-zero at once, with the port and its flag, without a traceback."""
        tunnel = self.make_tunnel(forwards=(1,))
        tunnel.server.start()
        await tunnel.server.ready()
        forward = tunnel.forward_ports[0]
        occupied = [
            ("--tunnel-agent-connect-port", str(tunnel.server.agent_port)),
            ("--meta-port", str(tunnel.server.meta_port)),
            ("--forward", f"127.0.0.1:{forward}=edge-1/127.0.0.1:1"),
            ("--connect-endpoint", f"unix:{tunnel.socket_path}"),
            ("--connect-endpoint", f"tcp:{forward}:interface=127.0.0.1"),
        ]
        for number, (flag, value) in enumerate(occupied):
            second = tunnel.another_server(state=f"S{number}", extra=(flag, value))
            second.start()
            status = await second.ended(15)
            self.assertGreater(status, 0, second.log)
            self.assertIn(flag, second.log)
            what = "connect.sock" if "unix:" in value else _port_of(value)
            self.assertIn(what, second.log)
            self.assertEqual(second.forbidden_log_lines(), [], second.log)
        status, body = await tunnel.server.get("/readyz")
        self.assertEqual(status, 200, body)
        self.assertTrue(os.path.exists(tunnel.socket_path))

    async def test_a_second_agent_on_the_same_meta_port_names_port_and_flag(self) -> None:
        """It exits non-zero, with the port and its flag, without a traceback."""
        tunnel = await self.start_tunnel()
        port = str(tunnel.agent.meta_port)
        second = tunnel.another_agent(state="A2", extra=("--meta-port", port))
        second.start()
        self.assertGreater(await second.ended(15), 0, second.log)
        self.assertIn("--meta-port", second.log)
        self.assertIn(port, second.log)

    async def test_bad_flags_are_named_in_one_line(self) -> None:
        """An invalid flag ends the start with a message that names it, without a traceback."""
        tunnel = self.make_tunnel()
        bad = [
            ("--forward", "127.0.0.1=nowhere"),
            ("--meta-port", "70000"),
            ("--resume-window", "soon"),
            ("--bind-address", "not an address"),
        ]
        servers = []
        for number, extra in enumerate(bad):
            server = tunnel.another_server(state=f"S{number}", extra=extra)
            server.start()
            servers.append((server, extra[0]))
        for server, flag in servers:
            self.assertGreater(await server.ended(20), 0, server.log)
            self.assertIn(flag, server.log)
            self.assertEqual(server.forbidden_log_lines(), [], server.log)


async def meta_answers(program: Program) -> bool:
    """Whether the program's meta port responds."""
    try:
        await program.get("/healthz")
    except Exception:
        return False
    return True


def _port_of(value: str) -> str:
    """Return the port of an endpoint, a forward or a plain number."""
    first = value.split("=")[0]
    return next(part for part in first.split(":") if part.isdigit())


class DrainTests(EndToEndTestCase):
    """SIGTERM loses no stream that ends within the drain timeout."""

    async def test_sigterm_to_the_agent_lets_a_download_finish(self) -> None:
        """A stopping agent finishes open streams, still gets new dials, then exits."""
        await self.drained("agent")

    async def test_sigterm_to_the_server_lets_a_download_finish(self) -> None:
        """A stopping server finishes open streams, then exits."""
        await self.drained("server")

    async def test_a_server_is_replaced_without_losing_a_stream(self) -> None:
        """While a stopping server finishes its stream, its successor gets all new ones."""
        echo = self.listen(Echo)
        tunnel = await self.start_tunnel(forwards=(echo.port,), drain=UNLIMITED_DRAIN)
        echo_client = await self.dial(tunnel.forward_ports[0], EchoClient(reactor))
        await echo_client.round_trip()
        tunnel.server.signal(signal.SIGTERM)
        await self.eventually(
            lambda: is_free(tunnel.server.agent_port), "the old server has closed its ports"
        )
        successor = tunnel.successor()
        successor.start()
        await successor.ready()
        await self.eventually(successor.agents, "the agent has joined the new server")
        for _ in range(5):
            await echo_client.round_trip()
            client = await self.connected(tunnel, echo, EchoClient(reactor))
            await client.round_trip()
        status, body = await tunnel.server.get("/readyz")
        self.assertEqual(status, 503, body)
        self.assertIn("draining", body)
        echo_client.transport.loseConnection()
        self.assertIn(await tunnel.server.ended(10), (0, -signal.SIGTERM))
        await client.round_trip()
        client = await self.dial(tunnel.forward_ports[0], EchoClient(reactor))
        await client.round_trip()

    async def test_a_server_that_drains_enrolls_nobody(self) -> None:
        """Enrolment on an earlier connection is rejected, since a successor may know who is
        enrolled."""
        echo = self.listen(Echo)
        tunnel = await self.start_tunnel(forwards=(echo.port,), drain=UNLIMITED_DRAIN)
        echo_client = await self.dial(tunnel.forward_ports[0], EchoClient(reactor))
        await echo_client.round_trip()
        connection = await deferToThread(enrolment_connection, tunnel.server)
        tunnel.server.signal(signal.SIGTERM)
        await self.eventually(
            lambda: is_free(tunnel.server.agent_port), "the server has closed its ports"
        )
        refused = await deferToThread(enroll, connection, tunnel.server, "edge-2")
        self.assertIn("this server is stopping: try again", refused)
        echo_client.transport.loseConnection()
        self.assertIn(await tunnel.server.ended(10), (0, -signal.SIGTERM))

    async def drained(self, which: str) -> None:
        """Stop one of the programs during a download that is slowed down by a rate limit."""
        size = 60_000_000
        target = self.listen(lambda: Source(size))
        slow = self.fault_proxy(target.port)
        slow.down.bandwidth = 3_000_000
        tunnel = await self.start_tunnel(forwards=(slow.port,), drain=UNLIMITED_DRAIN)
        download = await self.dial(tunnel.forward_ports[0], Download())
        await self.eventually(lambda: download.received > 100_000, "the download runs")
        program = getattr(tunnel, which)
        program.signal(signal.SIGTERM)
        if which == "agent":
            await self.pause(1)
            (await self.connected(tunnel, slow, RequestClient())).drop()
            self.assertIsNone(download.lost_reason)
        slow.down.bandwidth = None
        await self.within(15, download.when_lost(), "the download ends")
        self.assertTrue(download.ended_cleanly, download.lost_reason)
        self.assertEqual(download.received, size)
        self.assertEqual(download.digest, target.peers[0].payload.digest)
        self.assertIn(await program.ended(10), (0, -signal.SIGTERM))


def enrolment_connection(server: Server) -> ssl.SSLSocket:
    """Connect like an agent that enrols."""
    context = ssl.create_default_context(cafile=f"{server.state}/ca.crt")
    context.set_alpn_protocols([ENROLMENT_PROTOCOL.decode()])
    connection = socket.create_connection(("127.0.0.1", server.agent_port), 10)
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def enroll(connection: ssl.SSLSocket, server: Server, node: str) -> str:
    """Request the certificate of a node; return the response."""
    with open(server.token_path) as file:
        token = JoinToken.parse(file.read())
    csr = request_certificate(new_key())
    request = EnrolmentRequest(node, f"host={node}", csr, token.token_id, token.secret).encode()
    with connection, connection.makefile("rwb") as stream:
        stream.write(struct.pack("!I", len(request)) + request)
        stream.flush()
        return stream.read().decode("utf-8", "replace")
