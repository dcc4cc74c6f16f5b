"""Authentication: enrolment, identities, and their lifetime."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

from twisted.internet import reactor

from benchmarks.ports import free_ports
from tests.e2e.certificates import (
    Identity,
    authority_of,
    connect_with_tls,
    foreign_authority,
    identity_of,
    reissue,
)
from tests.e2e.clients import Echo, EchoClient, HttpTarget, RequestClient, Sink
from tests.e2e.crowds import Crowd
from tests.e2e.programs import Program, Server, Tunnel
from tests.e2e.support import EndToEndTestCase, copy_state, which
from yurttunnel.ops.shutdown import STATUS as FATAL


class CertificateTests(EndToEndTestCase):
    """The agents' port accepts valid certificates of the authority only."""

    async def assert_rejected(self, tunnel: Tunnel, identity: Identity | None) -> None:
        """Require that a connection as ``identity`` ends soon and makes no session."""
        sessions = await tunnel.server.metric("yurttunnel_server_sessions_started_total")
        trusted = authority_of(tunnel.server.state).certificate
        peer = RequestClient()
        try:
            await connect_with_tls(reactor, tunnel.server.agent_port, peer, trusted, identity)
        except Exception as reason:
            # A refused handshake may end the attempt instead of the connection.
            self.assertNotIn("refused", str(reason))
            return
        self._end_peer_with_test(peer)
        await self.within(5, peer.when_lost(), "the connection ends")
        self.assertEqual(peer.answer, b"")
        after = await tunnel.server.metric("yurttunnel_server_sessions_started_total")
        self.assertEqual(after, sessions)

    async def test_expired_foreign_and_missing_certificates_are_rejected(self) -> None:
        """Each fails at the handshake, with a log line, and the node stays connected."""
        tunnel = await self.start_tunnel()
        authority = authority_of(tunnel.server.state)
        original = identity_of(tunnel.agent.state).certificate
        for identity, why in (
            (reissue(original, authority, expired=True), "its certificate has expired"),
            (
                reissue(original, foreign_authority()),
                "its certificate is not from this server's authority",
            ),
            (None, "it presented no certificate"),
        ):
            await self.assert_rejected(tunnel, identity)
            line = f"has not become a session: {why}"
            await self.eventually(lambda x=line: x in tunnel.server.log, "the server says why", 5)
        self.assertNotIn("SSL routines", tunnel.server.log)
        # The agent's enrolment is not logged as a failed session.
        self.assertEqual(tunnel.server.log.count("has not become a session"), 3)
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()

    async def test_an_agent_refuses_a_server_of_another_authority(self) -> None:
        """An enrolled agent that reaches a foreign server rejects it and reports why."""
        tunnel = await self.start_tunnel()
        await tunnel.agent.stop()
        other = tunnel.another_server(state="other")
        other.start()
        await other.ready()
        lured = tunnel.another_agent(server_port=other.agent_port, token_path=None)
        lured.start()
        await self.eventually(lambda: "remove node.pem from" in lured.log, "the agent says why", 15)
        self.assertEqual(await other.agents(), [])

    async def test_secrets_are_readable_by_their_owner_only(self) -> None:
        """State directories are 0700, keys and token 0600, the CONNECT socket 0660."""
        tunnel = await self.start_tunnel()
        for state in (tunnel.server.state, tunnel.agent.state):
            self.assertEqual(stat.S_IMODE(os.stat(state).st_mode), 0o700)
            for path in Path(state).rglob("*"):
                if path.is_file() and b"PRIVATE KEY" in path.read_bytes():
                    self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600, path)
        token = os.stat(tunnel.server.token_path)
        self.assertEqual(stat.S_IMODE(token.st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(tunnel.socket_path).st_mode), 0o660)

    async def test_a_certificate_is_renewed_without_losing_a_stream(self) -> None:
        """With short lifetimes the agent renews its certificate while a hundred streams run."""
        lifetime = ("--node-certificate-lifetime", "12s")
        tunnel = await self.start_tunnel(server_extra=lifetime)
        echo, sink = self.listen(Echo), self.listen(Sink)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        crowd = Crowd(self, sink, lambda one: self.connected(tunnel, sink, one))
        await crowd.open_all(100)
        first = identity_of(tunnel.agent.state).certificate.serial_number

        async def renewed() -> bool:
            await client.round_trip()
            return identity_of(tunnel.agent.state).certificate.serial_number != first

        await self.eventually(renewed, "the agent has a new certificate", 24, interval=0.1)
        await client.round_trip()
        # Beyond the end of the first certificate, a new connection uses the second.
        await self.pause(6)
        await client.round_trip()
        await crowd.assert_progress()
        await crowd.assert_complete()
        self.assertEqual(await tunnel.server.metric("yurttunnel_server_sessions_started_total"), 1)


class TokenTests(EndToEndTestCase):
    """Enrolment requires a valid join token."""

    async def not_enrolled(self, tunnel: Tunnel, agent: Program, word: str) -> None:
        """Require that the agent reports why it is rejected, and exits: a retry would not help."""
        agent.start()
        self.assertIn(await agent.ended(15), (1, FATAL), agent.log)
        self.assertIn(word, agent.log.lower())
        self.assertEqual(agent.forbidden_log_lines(), [], agent.log)
        names = [entry["node"] for entry in await tunnel.server.agents()]
        self.assertNotIn("edge-2", names)

    def write_token(self, text: str) -> str:
        """Write a token file and return its path."""
        path = os.path.join(self.directory, "token")
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o600)
        return path

    async def test_a_wrong_token_enrolls_nobody(self) -> None:
        """A wrong secret, a wrong pin and an invalid token are rejected with different errors."""
        tunnel = self.make_tunnel()
        tunnel.server.start()
        await tunnel.server.ready()
        token = Path(tunnel.server.token_path).read_text().strip()
        name, secret, pin = token.split(".")
        wrong_secret = ".".join((name, secret[::-1], pin))
        wrong_pin = ".".join((name, secret, f"sha256:{'0' * 64}"))
        for number, text in enumerate((wrong_secret, wrong_pin, "nonsense")):
            agent = tunnel.another_agent(
                node="edge-2", state=f"W{number}", token_path=self.write_token(text)
            )
            word = "authority" if text is wrong_pin else "token"
            await self.not_enrolled(tunnel, agent, word)

    async def test_an_expired_token_enrolls_nobody(self) -> None:
        """A token works during its lifetime only."""
        tunnel = self.make_tunnel(server_extra=("--join-token-lifetime", "2s"))
        tunnel.server.start()
        await tunnel.server.ready()
        token = self.write_token(Path(tunnel.server.token_path).read_text())
        await self.pause(2.5)
        agent = tunnel.another_agent(node="edge-2", state="E", token_path=token)
        # Once it has expired the server has issued the next one.
        await self.eventually(
            lambda: Path(tunnel.server.token_path).read_text() != Path(token).read_text(),
            "there is another token",
        )
        await self.not_enrolled(tunnel, agent, "the join token expired at")

    async def test_a_replayed_token_gives_no_second_certificate_for_a_node(self) -> None:
        """The owner of the token cannot enrol as a node that is enrolled already."""
        tunnel = await self.start_tunnel()
        thief = tunnel.another_agent(node="edge-1", state="T")
        thief.start()
        self.assertEqual(await thief.ended(15), FATAL, thief.log)
        self.assertIn("enrolled already", thief.log)
        (entry,) = await tunnel.server.agents()
        self.assertIs(entry["connected"], True)
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()

    async def test_one_node_cannot_register_anothers_name(self) -> None:
        """A node that claims another's host is rejected, and the other one keeps its traffic."""
        tunnel = await self.start_tunnel()
        claim = ("--agent-identifiers", "host=edge-2&host=edge-1")
        thief = tunnel.another_agent(node="edge-2", state="N", extra=claim)
        await self.not_enrolled(tunnel, thief, "edge-1")

    async def test_an_enrolled_node_cannot_take_a_name_later(self) -> None:
        """With a certificate for edge-2, claiming edge-1 or its own network is rejected."""
        tunnel = await self.start_tunnel()
        second = tunnel.another_agent(node="edge-2", state="N")
        second.start()
        await second.ready()
        await second.stop()
        claim = ("--agent-identifiers", "host=edge-2&host=edge-1&cidr=0.0.0.0/0")
        thief = tunnel.another_agent(node="edge-2", state="N", token_path=None, extra=claim)
        thief.start()
        self.assertEqual(await thief.ended(15), FATAL, thief.log)
        self.assertIn("does not cover host=edge-1", thief.log)
        echo = self.listen(Echo)
        client = EchoClient(reactor)
        answer = await self.connect(tunnel, f"edge-1:{echo.port}", client)
        self.assertEqual(answer.status, 200, answer.body)
        await client.round_trip()
        entries = {entry["node"]: entry for entry in await tunnel.server.agents()}
        self.assertIs(entries["edge-1"]["connected"], True)

    async def test_nobody_stands_in_for_an_enrolled_node(self) -> None:
        """While edge-1 is disconnected, its requests go to no network and no default route."""
        own = ("--agent-identifiers", "host=edge-1&ipv4=10.77.2.2")
        tunnel = await self.start_tunnel(server_extra=("--resume-window", "1"), agent_extra=own)
        claim = (
            "--agent-identifiers",
            "host=mallory&default-route=true&cidr=10.77.2.0/24",
            "--allow-destination",
            "0.0.0.0/0",
        )
        thief = tunnel.another_agent(node="mallory", state="N", extra=claim)
        thief.start()
        await thief.ready()
        echo = self.listen(Echo)
        await tunnel.agent.stop()
        for host in ("edge-1", "EDGE-1.", "10.77.2.2", "[::ffff:10.77.2.2]"):
            answer = await self.connect(tunnel, f"{host}:{echo.port}", EchoClient(reactor))
            self.assertEqual(answer.status, 503, (host, answer.body))
            self.assertIn("it was last seen", str(answer.body))
        client = EchoClient(reactor)
        answer = await self.connect(tunnel, f"127.0.0.1:{echo.port}", client)
        self.assertEqual(answer.status, 200, answer.body)
        await client.round_trip()


class RevocationTests(EndToEndTestCase):
    """One command on the state directory revokes a node."""

    async def test_revoking_a_node_ends_its_session_within_a_second(self) -> None:
        """Streams and session end, and the agent gets the reason and is rejected afterwards."""
        tunnel = await self.start_tunnel()
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        await self.revoke(tunnel.server, "edge-1")

        async def is_ended() -> bool:
            return not any(entry["connected"] for entry in await tunnel.server.agents())

        await self.eventually(is_ended, "the session is ended", 1)
        await self.within(1, client.when_ended(), "the stream ends")
        ends = await tunnel.server.metric("yurttunnel_server_session_ends_total", reason="revoked")
        self.assertEqual(ends, 1)
        await self.eventually(lambda: "revoked" in tunnel.agent.log, "the agent knows why", 5)

        again = tunnel.another_agent(token_path=None)
        tunnel.agent.kill()
        again.start()
        advice = "remove node.pem from the agent's --state-dir"
        await self.eventually(lambda: advice in again.log, "the agent says what to do", 15)
        answer = await self.connect(tunnel, f"edge-1:{echo.port}", RequestClient())
        self.assertEqual(answer.status, 503, answer.body)

        # The advice in the log works.
        again.kill()
        os.unlink(os.path.join(again.state, "node.pem"))
        back = tunnel.another_agent()
        back.start()
        await back.ready()
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()

    async def test_a_draining_server_still_revokes(self) -> None:
        """While SIGTERM waits for streams, those of a revoked node end at once."""
        tunnel = await self.start_tunnel(drain=30)
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        tunnel.server.signal(signal.SIGTERM)

        async def draining() -> bool:
            status, body = await tunnel.server.get("/readyz")
            return status == 503 and "draining" in body

        await self.eventually(draining, "the server says that it drains")
        await client.round_trip()
        await self.revoke(tunnel.server, "edge-1")
        await self.within(1.5, client.when_ended(), "the stream ends")
        self.assertIn(await tunnel.server.ended(5), (0, -signal.SIGTERM))

    async def test_revoking_at_a_second_server_ends_its_session(self) -> None:
        """A server on a copy of the state from before the enrolment rejects the node, too."""
        tunnel = self.make_tunnel()
        tunnel.server.start()
        await tunnel.server.ready()
        second = tunnel.another_server(state="S2")
        copy_state(tunnel.server.state, second.state)
        second.start()
        await second.ready()
        servers = f"127.0.0.1:{tunnel.server.agent_port},127.0.0.1:{second.agent_port}"
        arguments = tunnel.agent.arguments
        arguments[arguments.index("--tunnelserver-addr") + 1] = servers
        tunnel.agent.start()
        await tunnel.agent.ready()
        self.assertFalse(os.path.exists(f"{second.state}/nodes/edge-1"))

        async def connected(server: Server) -> bool:
            return any(entry["connected"] for entry in await server.agents())

        await self.eventually(lambda: connected(second), "the agent has a session with it", 10)
        command = await self.revoke(second, "edge-1")
        self.assertIn("node edge-1 was not enrolled at this server, but", command.log)

        async def is_ended() -> bool:
            return not await connected(second)

        await self.eventually(is_ended, "the session is ended", 1)
        await self.eventually(lambda: "revoked" in tunnel.agent.log, "the agent knows why", 5)
        self.assertTrue(await connected(tunnel.server))
        # The agent does not return, and the session with the other server continues.
        await self.pause(3)
        self.assertFalse(await connected(second))
        self.assertTrue(await connected(tunnel.server))

    async def revoke(self, server: Server, node: str) -> Program:
        """Run the command on a server's state directory, which must succeed."""
        command = Program(
            reactor,
            ["yurttunnel-server", "--standalone", "--state-dir", server.state,
             "--revoke-node", node],
            f"{self.directory}/revoke.log",
            0,
        )  # fmt: skip
        command.start()
        self.addCleanup(command.kill)
        self.assertEqual(await command.ended(10), 0, command.log)
        self.assertEqual(command.forbidden_log_lines(), [], command.log)
        return command


class CallerTests(EndToEndTestCase):
    """``--connect-endpoint ssl:`` accepts the caller's certificate, and no node's."""

    async def start_with_tls(self, **options) -> tuple[Tunnel, int]:
        """Start a tunnel with a TLS front end, and return its port."""
        port = free_ports.take()
        endpoint = ("--connect-endpoint", f"ssl:{port}")
        return await self.start_tunnel(server_extra=endpoint, **options), port

    async def test_curl_and_openssl_with_the_callers_certificate(self) -> None:
        """curl, which offers ALPN, and openssl, which does not, reach an HTTP server."""
        which("curl")
        which("openssl")
        target = self.listen(HttpTarget)
        tunnel, port = await self.start_with_tls()
        state = tunnel.server.state
        url = f"http://127.0.0.1:{target.port}/"
        output, errors, status = await self.run_command(
            "curl", "-sS", "--max-time", "10", "--proxytunnel",
            "--proxy", f"https://localhost:{port}", "--proxy-cacert", f"{state}/ca.crt",
            "--proxy-cert", f"{state}/client.crt", "--proxy-key", f"{state}/client.key", url,
        )  # fmt: skip
        self.assertEqual(status, 0, errors)
        direct, _, _ = await self.run_command("curl", "-sS", url)
        self.assertEqual(output, direct)
        for version in ("-tls1_2", "-tls1_3"):
            question = (
                f"CONNECT 127.0.0.1:{target.port} HTTP/1.1\r\nHost: x\r\n\r\n"
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            output, errors, _ = await self.run_command(
                "openssl", "s_client", "-quiet", version, "-connect", f"localhost:{port}",
                "-CAfile", f"{state}/ca.crt", "-cert", f"{state}/client.crt",
                "-key", f"{state}/client.key", standard_input=question.encode(),
            )  # fmt: skip
            self.assertTrue(output.startswith(b"HTTP/1.1 200 Connection established"), errors)
            self.assertIn(direct, output)

    async def test_nodes_and_strangers_are_refused(self) -> None:
        """A node's certificate, or none, is rejected with an alert, and the reason is logged."""
        which("openssl")
        tunnel, port = await self.start_with_tls()
        node = os.path.join(tunnel.agent.state, "node.pem")
        for certificate, why in (
            (("-cert", node, "-key", node), "its certificate is that of a node, 'edge-1'"),
            ((), "it presented no certificate"),
        ):
            _, errors, status = await self.run_command(
                "openssl", "s_client", "-quiet", "-connect", f"localhost:{port}",
                "-CAfile", f"{tunnel.server.state}/ca.crt", *certificate,
                standard_input=b"CONNECT edge-1:80 HTTP/1.1\r\n\r\n",
            )  # fmt: skip
            self.assertNotEqual(status, 0)
            self.assertIn(b"alert", errors)
            line = f"a caller from 127.0.0.1 is refused: {why}"
            await self.eventually(lambda x=line: x in tunnel.server.log, "the server says why", 5)
