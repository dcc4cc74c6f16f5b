"""An agent's certificates without a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import LogLevel, capturedLogs, formatEvent
from zope.interface.verify import verifyObject

from tests.pki.standalone import DAY, World
from tests.pki.support import (
    EDGE_1,
    MemoryServer,
    SteppedClock,
    accept,
    dial,
    exchange,
    handshake,
    peer_serial,
)
from yurttunnel.agent.standalone import enrolled_trust
from yurttunnel.pki.admission import Admission
from yurttunnel.pki.contexts import ClientContexts, ServerNotTrusted
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.enrolment_issuer import NodeStore, _first_response
from yurttunnel.pki.enrolment_messages import EnrolmentRefused, Refusal
from yurttunnel.pki.identity import identity_from_certificate, parse_identifiers
from yurttunnel.pki.issuer import Chain
from yurttunnel.pki.names import BadIdentity
from yurttunnel.pki.revocation import revoke_node
from yurttunnel.pki.token import BadToken, JoinToken
from yurttunnel.server.standalone_trust import StandaloneServerTrust


class AgentTrustTests(World):
    """The agent's facade."""

    def test_endpoint(self) -> None:
        """The endpoint of these tests implements the interface."""
        verifyObject(IStreamClientEndpoint, self.network)

    def test_enrolls(self) -> None:
        """An agent with the join token gets a certificate for its name and identifiers."""
        contexts = self.successResultOf(self.get_ready(self.agent()))
        identity = identity_from_certificate(contexts.credentials.certificate)
        self.assertEqual((identity.node, identity.identifiers), ("edge-1", EDGE_1))
        self.assertEqual(self.network.open_connections, 0)

    def test_tunnel(self) -> None:
        """The certificate is valid for a tunnel to the server."""
        contexts = self.successResultOf(self.get_ready(self.agent()))
        _, server = self.connect(contexts)
        self.assertEqual(peer_serial(server), contexts.credentials.certificate.serial_number)

    def test_restart(self) -> None:
        """A restarted agent with a valid certificate makes no requests, and needs no token."""
        state = self.mktemp()
        first = self.successResultOf(self.get_ready(self.agent(state=state)))
        self.network.reachable = False
        agent = self.started(self.open(self.clock, state, None))
        second = self.successResultOf(self.get_ready(agent))
        self.assertEqual(second.credentials.certificate, first.credentials.certificate)

    def test_started_ahead(self) -> None:
        """An agent waits for the clock if its certificate has expired by a wrong clock.

        It does so without a token, with an unreadable one, and with one that the server rejects,
        and for all other errors that would end an agent without an enrolment.
        """

        def unreadable() -> JoinToken:
            raise ValueError("--join-token-file token: No such file or directory")

        def wrong() -> JoinToken:
            return JoinToken("0" * 16, "0" * 32, self.read_token().pin)

        def foreign() -> JoinToken:
            return JoinToken("0" * 16, "0" * 32, "0" * 64)

        state = self.mktemp()
        first = self.successResultOf(self.get_ready(self.agent(state=state)))
        before = Path(state, "node.pem").read_bytes()
        readers: tuple[Callable[[], JoinToken] | None, ...] = (None, unreadable, wrong, foreign)
        for read_token in readers:
            clock = SteppedClock(200 * DAY)
            agent = self.open(clock, state, read_token)
            with capturedLogs() as events:
                agent.startService()
                ready = self.get_ready(agent)
                for _ in range(120):
                    clock.advance(1)
                    self.network.settle()
            self.assertNoResult(ready)
            texts = [formatEvent(e) for e in events if e["log_level"] is LogLevel.error]
            self.assertIn("the clock of this machine says 2", texts[0])
            self.assertIn("If the clock is wrong, set it", agent.problem() or "")
            clock.ahead = 0.0
            clock.advance(1)
            contexts = self.successResultOf(ready)
            self.assertEqual(contexts.credentials.certificate, first.credentials.certificate)
            self.assertEqual(Path(state, "node.pem").read_bytes(), before)
            self.assertEqual((agent.problem(), agent.warning()), (None, None))
            agent.stopService()

    def test_enrolled_first_by_a_wrong_clock(self) -> None:
        """An agent without a certificate also waits for the clock, and reports the difference.

        The same holds if the server's certificate is not valid by the clock, if only the agent's is
        not, and if another server is unreachable.
        """
        refused = "nowhere.test:10262: Connection was refused by other side.; "
        cases = (
            (-20 * 365 * DAY, "7300 days behind", ""),
            (200 * DAY, "200 days ahead of", ""),
            (40 * DAY, "40 days ahead of", ""),
            (200 * DAY, "200 days ahead of", refused),
        )
        for number, (ahead, expected, more) in enumerate(cases):
            node = f"edge-{number}"
            own = parse_identifiers(f"host={node}")
            clock = SteppedClock(ahead)
            servers = [self.server]
            if more:
                nowhere = mock.Mock(connect=mock.Mock(side_effect=ConnectionRefusedError()))
                servers.insert(0, ServerAddress("nowhere.test", 10262, nowhere))
            agent = enrolled_trust(clock, self.mktemp(), node, own, servers, self.read_token)
            with capturedLogs() as events:
                agent.startService()
                ready = Deferred.fromCoroutine(agent.ready())
                for _ in range(120):
                    self.network.settle()
                    clock.advance(1)
            self.assertNoResult(ready)
            texts = [formatEvent(e) for e in events if e["log_level"] is LogLevel.error]
            for text in (
                texts[0].partition("not obtained: ")[2],
                (agent.problem() or "").partition(" yet: ")[2],
            ):
                begin = (
                    f"{more}127.0.0.1:10262: this machine's clock is {expected} the server's: it"
                )
                self.assertTrue(text.startswith(begin), text)
            clock.ahead = 0.0
            for _ in range(40):
                self.network.settle()
                clock.advance(1)
            self.successResultOf(ready)
            self.assertEqual((agent.problem(), agent.warning()), (None, None))
            agent.stopService()

    def test_other_identifiers_without_a_token(self) -> None:
        """An error that no clock explains ends an agent, even if its certificate has expired."""
        state = self.mktemp()
        self.successResultOf(self.get_ready(self.agent(state=state)))
        other = parse_identifiers("host=edge-1&host=camera")
        for ahead in (0.0, 200 * DAY):
            agent = self.started(self.open(SteppedClock(ahead), state, None, other))
            self.failureResultOf(self.get_ready(agent), StateError)

    def test_no_token(self) -> None:
        """An agent without a certificate and a token reports what it needs."""
        agent = self.started(self.open(self.clock, self.mktemp(), None))
        failure = self.failureResultOf(self.get_ready(agent), StateError)
        self.assertIn("--join-token-file", str(failure.value))

    def test_unreadable_token(self) -> None:
        """An agent that cannot read its token ends with the reason."""

        def read_token() -> JoinToken:
            return JoinToken.parse("nonsense")

        self.failureResultOf(self.get_ready(self.agent(read_token=read_token)), BadToken)

    def test_refused(self) -> None:
        """A rejection ends the attempt, since a retry would not change it."""
        self.successResultOf(self.get_ready(self.agent()))
        failure = self.failureResultOf(self.get_ready(self.agent()), EnrolmentRefused)
        self.assertEqual(failure.value.code, Refusal.ALREADY_ENROLLED)

    def test_temporary_rejection(self) -> None:
        """After a temporary rejection, the agent retries."""
        refused = EnrolmentRefused(Refusal.RATE_LIMITED, "for the moment")
        with mock.patch.object(Admission, "decide", side_effect=refused):
            ready = self.get_ready(self.agent())
        self.assertNoResult(ready)
        self.clock.advance(1)
        self.network.settle()
        self.successResultOf(ready)

    def test_wrong_server(self) -> None:
        """An agent whose token is of another server ends with the reason."""
        other = StandaloneServerTrust(self.clock, self.mktemp(), ["127.0.0.1"])
        token = other.authority.pin

        def read_token() -> JoinToken:
            mine = self.read_token()
            return JoinToken(mine.token_id, mine.secret, token)

        agent = self.agent(read_token=read_token)
        self.failureResultOf(self.get_ready(agent), ServerNotTrusted)

    def test_waits_for_the_server(self) -> None:
        """An agent that is started before its server enrolls once the server is started."""
        self.network.reachable = False
        ready = self.get_ready(self.agent())
        self.clock.pump([1.0] * 120)
        self.assertNoResult(ready)
        self.network.reachable = True
        for _ in range(31):
            self.clock.advance(1)
            self.network.settle()
        self.successResultOf(ready)

    def test_waiting_is_cancelled(self) -> None:
        """Stopping an agent ends its wait for the server."""
        self.network.reachable = False
        ready = self.get_ready(self.agent())
        ready.cancel()
        self.failureResultOf(ready, CancelledError)

    def test_second_server(self) -> None:
        """If one server is down, the next is tried."""
        down = MemoryServer(self.clock, self.trust.contexts, self.trust.enrolment_factory)
        down.reachable = False
        servers = [ServerAddress("127.0.0.1", 10262, down), self.server]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.network.settle()
        self.successResultOf(ready)

    def other_server(self) -> tuple[StandaloneServerTrust, ServerAddress]:
        """Start a server with its own state directory, and another authority."""
        trust = StandaloneServerTrust(self.clock, self.mktemp(), ["127.0.0.1"])
        network = MemoryServer(self.clock, trust.contexts, trust.enrolment_factory)
        return trust, ServerAddress("127.0.0.1", 10262, network)

    def settle(self, servers: list[ServerAddress], steps: int = 10) -> None:
        """Transfer data to several servers, one after the other."""
        for _ in range(steps):
            for server in servers:
                server.endpoint.settle()

    def second_server(self) -> ServerAddress:
        """Start a second server of the authority; it has no records, and its own tokens."""
        state = Path(self.mktemp())
        state.mkdir(0o700)
        for name in ("ca.crt", "ca.key"):
            shutil.copy(Path(self.state, name), state)
        self.second = StandaloneServerTrust(self.clock, state, ["127.0.0.1"])
        self.second_state = state
        network = MemoryServer(self.clock, self.second.contexts, self.second.enrolment_factory)
        return ServerAddress("127.0.0.1", 10262, network)

    def test_enrolls_past_others(self) -> None:
        """A server that is not trusted, or does not know the token, does not end an enrolment."""
        servers = [self.other_server()[1], self.second_server(), self.server]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.settle(servers)
        self.successResultOf(ready)

    def test_renews_at_the_next_server(self) -> None:
        """A server that is not trusted, or has no record of the node, does not end a renewal."""
        self.clock.advance(-25 * DAY)
        self.state = self.mktemp()
        self.start_server()
        servers = [self.other_server()[1], self.second_server(), self.server]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.settle(servers)
        contexts = self.successResultOf(ready)
        first = contexts.credentials.certificate
        for _ in range(21):
            self.clock.advance(DAY)
            self.settle(servers)
        self.assertNotEqual(contexts.credentials.certificate, first)

    def test_all_refuse(self) -> None:
        """If no server can help later, the rejection is raised, not the distrust."""
        servers = [self.second_server(), self.other_server()[1]]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.settle(servers)
        failure = self.failureResultOf(ready, EnrolmentRefused)
        self.assertEqual(failure.value.code, Refusal.BAD_TOKEN)

    def test_one_may_help_later(self) -> None:
        """While one server is unreachable the agent waits for it, whatever the others answer."""
        self.network.reachable = False
        servers = [self.second_server(), self.server]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.settle(servers)
        self.assertNoResult(ready)
        self.network.reachable = True
        self.clock.advance(1)
        self.settle(servers)
        self.successResultOf(ready)

    def test_revocation_is_reported_first(self) -> None:
        """Of several rejections, the revocation of the node is raised."""
        refused = [
            EnrolmentRefused(code, "no")
            for code in (Refusal.NOT_AUTHORIZED, Refusal.REVOKED, Refusal.BAD_TOKEN)
        ]

        async def ask(server: ServerAddress) -> Chain:
            raise refused[int(server.name)]

        servers = [ServerAddress(str(number), 10262, self.network) for number in range(3)]
        answer = Deferred.fromCoroutine(_first_response(servers, ask))
        failure = self.failureResultOf(answer, EnrolmentRefused)
        self.assertEqual(failure.value.code, Refusal.REVOKED)

    def test_revoked_at_a_second_server(self) -> None:
        """A server of the same authority without a record of the node can revoke it, too."""
        contexts = self.successResultOf(self.get_ready(self.agent()))
        identity = identity_from_certificate(contexts.credentials.certificate)
        self.second_server()
        self.assertFalse(self.second.revocations.is_revoked(identity))
        revoke_node(self.clock, self.second_state, "edge-1")
        self.second.revocations.refresh()
        self.assertTrue(self.second.revocations.is_revoked(identity))
        self.assertFalse(self.trust.revocations.is_revoked(identity))

    def test_rate_limited(self) -> None:
        """A rate-limited agent retries."""
        right = self.read_token()
        wrong = JoinToken("0" * 16, "0" * 32, right.pin)
        tokens = [wrong, right]
        with mock.patch("yurttunnel.pki.admission.MAX_TOKEN_FAILURES", 0):
            ready = self.get_ready(self.agent(read_token=lambda: tokens.pop(0)))
        self.assertNoResult(ready)
        self.clock.advance(1)
        self.network.settle()
        self.successResultOf(ready)

    def test_lost_answer(self) -> None:
        """An agent that was killed before it got the response enrolls at its next start."""
        state = self.mktemp()
        with mock.patch.object(NodeStore, "save", side_effect=StateError("killed")):
            agent = self.agent(state=state)
            self.network.settle()
            agent.stopService()
        self.assertEqual([path.name for path in Path(state).iterdir()], ["pending.key"])
        self.successResultOf(self.get_ready(self.agent(state=state)))
        self.assertEqual([path.name for path in Path(state).iterdir()], ["node.pem"])

    def test_other_node(self) -> None:
        """The state of one node is not used for another."""
        state = self.mktemp()
        self.successResultOf(self.get_ready(self.agent(state=state)))
        error = self.assertRaises(StateError, self.open, self.clock, state, None, node="edge-2")
        self.assertIn("is the state of node edge-1", str(error))

    def test_bad_name(self) -> None:
        """A name that no node can have is rejected before anything else."""
        self.assertRaises(BadIdentity, self.open, self.clock, self.mktemp(), None, node="Edge")

    def test_broken_state(self) -> None:
        """A broken file in the state directory is an error that names it."""
        state = self.mktemp()
        self.successResultOf(self.get_ready(self.agent(state=state)))
        file = Path(state, "node.pem")
        good = file.read_bytes()
        for content in (b"", good[:100], good[:600], good[good.index(b"-----BEGIN CERT") :]):
            file.write_bytes(content)
            error = self.assertRaises(StateError, self.open, self.clock, state, None)
            self.assertIn("node.pem: it", str(error))

    def test_more_identifiers(self) -> None:
        """An agent that is restarted with more identifiers enrolls again for them."""
        state = self.mktemp()
        self.successResultOf(self.get_ready(self.agent(state=state)))
        more = parse_identifiers("host=edge-1&cidr=10.0.0.0/8")
        contexts = self.successResultOf(self.get_ready(self.agent(state=state, identifiers=more)))
        identity = identity_from_certificate(contexts.credentials.certificate)
        self.assertEqual(identity.identifiers, more)

    def test_renewal(self) -> None:
        """The certificate is renewed without a restart and without losing a session."""
        # OpenSSL uses the real time, at which both certificates are valid.
        self.clock.advance(-25 * DAY)
        self.state = self.mktemp()
        self.start_server()
        agent = self.agent()
        contexts = self.successResultOf(self.get_ready(agent))
        live = self.connect(contexts)
        first = contexts.credentials.certificate
        self.pass_time(17 * DAY)
        self.assertEqual(contexts.credentials.certificate, first)
        self.pass_time(4 * DAY)
        second = contexts.credentials.certificate
        self.assertEqual(peer_serial(live[1]), first.serial_number)
        self.assertEqual(exchange(*live, b"still here"), b"still here")
        self.assertEqual(peer_serial(self.connect(contexts)[1]), second.serial_number)
        self.assertNotEqual(second.serial_number, first.serial_number)
        self.assertEqual(agent.certificate.not_after, second.not_valid_after_utc)

    def test_renewal_without_room(self) -> None:
        """On a full disk the agent uses certificates that it has only in memory."""
        # As above; the third certificate is obtained by the second one.
        self.clock.advance(-25 * DAY)
        self.state, state = self.mktemp(), self.mktemp()
        self.start_server()
        agent = self.agent(state=state)
        contexts = self.successResultOf(self.get_ready(agent))
        first = contexts.credentials.certificate
        stored = Path(state, "node.pem").read_bytes()
        full = StateError("the disk is full")
        with mock.patch.object(NodeStore, "save", side_effect=full):
            self.pass_time(21 * DAY)
            second = contexts.credentials.certificate
            self.assertEqual(peer_serial(self.connect(contexts)[1]), second.serial_number)
            self.pass_time(19 * DAY)
            third = contexts.credentials.certificate
        self.assertEqual(len({first, second, third}), 3)
        self.assertEqual(Path(state, "node.pem").read_bytes(), stored)
        self.assertIsNone(agent.problem())
        self.assertIn("not stored for a restart: the disk is full", agent.warning() or "")
        self.pass_time(3600)
        self.assertIsNone(agent.warning())
        self.assertNotEqual(Path(state, "node.pem").read_bytes(), stored)

    def connect(self, contexts: ClientContexts) -> tuple[SSL.Connection, SSL.Connection]:
        """Run a handshake for a tunnel, and return the agent's and the server's side."""
        client = dial(contexts, "127.0.0.1", self.fail)
        server = accept(self.trust.contexts)
        handshake(client, server)
        return client, server

    def test_expired_while_off(self) -> None:
        """A node whose certificate expired while it was off enrolls again with its key."""
        state = self.mktemp()
        agent = self.agent(state=state)
        first = self.successResultOf(self.get_ready(agent))
        agent.stopService()
        self.clock.advance(31 * DAY)
        second = self.successResultOf(self.get_ready(self.agent(state=state)))
        self.assertEqual(second.credentials.key.public_key(), first.credentials.key.public_key())
        self.assertGreater(
            second.credentials.certificate.not_valid_after_utc,
            first.credentials.certificate.not_valid_after_utc,
        )

    def test_revoked(self) -> None:
        """A revoked node enrolls with the server's new token, after its state is removed."""
        self.successResultOf(self.get_ready(self.agent()))
        ended: list[str] = []
        self.trust.on_revoked(ended.append)
        old = self.read_token()
        revoke_node(self.clock, self.state, "edge-1")
        self.clock.advance(1)
        self.assertEqual(ended, ["edge-1"])
        failure = self.failureResultOf(
            self.get_ready(self.agent(read_token=lambda: old)), EnrolmentRefused
        )
        self.assertEqual(failure.value.code, Refusal.TOKEN_EXPIRED)
        self.successResultOf(self.get_ready(self.agent()))

    def test_stops(self) -> None:
        """Stopping leaves no timers."""
        agent = self.agent()
        self.successResultOf(self.get_ready(agent))
        agent.stopService()
        self.trust.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
