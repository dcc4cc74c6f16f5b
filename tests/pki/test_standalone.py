"""The facades of the two commands: everything together, over TLS in memory."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.pki.support import (
    EDGE_1,
    MemoryServer,
    SteppedClock,
    accept,
    client_context,
    clock_now,
    dial,
    exchange,
    handshake,
    peer_serial,
)
from yurttunnel.agent.standalone import enrolled_trust
from yurttunnel.agent.trust import AgentTrust
from yurttunnel.pki.admission import Admission
from yurttunnel.pki.authorities import BadBundle
from yurttunnel.pki.contexts import ClientContexts, ServerNotTrusted
from yurttunnel.pki.credentials import (
    Credentials,
    certificates_from_pem,
    key_from_pem,
    pin_of,
)
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.enrolment_issuer import NodeStore, _first_answer
from yurttunnel.pki.enrolment_messages import EnrolmentRefused, Refusal
from yurttunnel.pki.identity import (
    BadIdentity,
    Identifiers,
    identity_from_certificate,
    parse_identifiers,
)
from yurttunnel.pki.issuer import Chain
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.pki.revocation import revoke_node
from yurttunnel.pki.token import BadToken, JoinToken
from yurttunnel.server.standalone_trust import StandaloneServerTrust

DAY = 86400


class World(TestCase):
    """A server, and agents that enroll with it."""

    def setUp(self) -> None:
        """Start the server."""
        self.clock = clock_now()
        self.state = self.mktemp()
        self.start_server()

    def start_server(self) -> None:
        """Start the server's part on the state directory."""
        self.trust = StandaloneServerTrust(self.clock, self.state, ["127.0.0.1"])
        self.trust.startService()
        self.addCleanup(self.trust.stopService)
        self.network = MemoryServer(self.clock, self.trust.contexts, self.trust.enrolment_factory)
        self.server = ServerAddress("127.0.0.1", 10262, self.network)

    def read_token(self) -> JoinToken:
        """Read the server's current join token."""
        return JoinToken.parse(Path(self.state, "join-token").read_text())

    def agent(
        self,
        node: str = "edge-1",
        identifiers: Identifiers = EDGE_1,
        state: str | None = None,
        read_token: Callable[[], JoinToken] | None = None,
        servers: list[ServerAddress] | None = None,
    ) -> AgentTrust:
        """Start an agent's part, on a new state directory if none is given."""
        return self.started(
            enrolled_trust(
                self.clock,
                state or self.mktemp(),
                node,
                identifiers,
                servers or [self.server],
                read_token or self.read_token,
            )
        )

    def open(
        self,
        clock: Clock,
        state: str,
        read_token: Callable[[], JoinToken] | None,
        identifiers: Identifiers = EDGE_1,
        node: str = "edge-1",
    ) -> AgentTrust:
        """Open an agent's part on what is in ``state``."""
        return enrolled_trust(clock, state, node, identifiers, [self.server], read_token)

    def started(self, agent: AgentTrust) -> AgentTrust:
        """Start an agent's part."""
        agent.startService()
        self.addCleanup(lambda: agent.running and agent.stopService())
        return agent

    def get_ready(self, agent: AgentTrust) -> Deferred[ClientContexts]:
        """Let the agent get its certificate."""
        ready = Deferred.fromCoroutine(agent.ready())
        self.network.settle()
        return ready

    def pass_time(self, seconds: float, step: float = 3600.0) -> None:
        """Let time pass, and bytes flow."""
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            self.network.settle()


class ServerTrustTests(World):
    """The server's facade."""

    def test_files(self) -> None:
        """Once it is open, all that others need is in the state directory."""
        state = Path(self.state)
        (authority,) = certificates_from_pem((state / "ca.crt").read_bytes())
        self.assertEqual(self.read_token().pin, pin_of(authority))
        (caller,) = certificates_from_pem((state / "client.crt").read_bytes())
        caller.verify_directly_issued_by(authority)
        secrets = ("ca.key", "join-token", "client.key", "server.pem", "tokens.json")
        for name in (*secrets, "kubelet-client.pem"):
            self.assertEqual((state / name).stat().st_mode & 0o777, 0o600)

    def test_restart(self) -> None:
        """A restart keeps authority, server certificate, caller's certificate and token."""
        names = ["ca.crt", "ca.key", "server.pem", "client.crt", "client.key", "join-token"]
        names.append("kubelet-client.pem")
        before = [Path(self.state, name).read_bytes() for name in names]
        self.trust.stopService()
        self.start_server()
        self.assertEqual([Path(self.state, name).read_bytes() for name in names], before)

    def test_interception(self) -> None:
        """The certificate in the directory opens the port that stands in for kubelets, too."""
        state = Path(self.state)
        (certificate,) = certificates_from_pem((state / "client.crt").read_bytes())
        key = key_from_pem((state / "client.key").read_bytes())
        caller = self.trust.authority.credentials(key, certificate)
        contexts = ClientContexts(caller, b"http/1.1")
        refused: list[BaseException] = []
        client = dial(contexts, "edge-1", refused.append)
        server = self.trust.interception.serverConnectionForTLS(None)
        server.set_accept_state()
        handshake(client, server)
        self.assertEqual([], refused)

    def test_kubelets(self) -> None:
        """Kubelets are verified as the flags say; a file of authorities has to be there."""
        self.assertIs(KubeletVerification.AUTO, self.trust.kubelets.mode)
        path = Path(self.mktemp())
        arguments: dict[str, Any] = {
            "kubelet_verify": KubeletVerification.CA,
            "kubelet_ca": path,
        }
        self.assertRaises(
            BadBundle, StandaloneServerTrust, self.clock, self.mktemp(), ["127.0.0.1"], **arguments
        )
        path.write_bytes(Path(self.state, "ca.crt").read_bytes())
        trust = StandaloneServerTrust(self.clock, self.mktemp(), ["127.0.0.1"], **arguments)
        self.assertIs(KubeletVerification.CA, trust.kubelets.mode)

    def test_callers(self) -> None:
        """Callers get in with the certificate in the directory, and the server's own rotates."""
        state = Path(self.state)
        (certificate,) = certificates_from_pem((state / "client.crt").read_bytes())
        key = key_from_pem((state / "client.key").read_bytes())
        before = self.trust.callers.credentials
        caller = Credentials(key, certificate, (), ())
        client = SSL.Connection(client_context(caller, []), None)
        client.set_connect_state()
        server = self.trust.callers.serverConnectionForTLS(None)
        server.set_accept_state()
        handshake(client, server)
        self.assertEqual(peer_serial(client), before.certificate.serial_number)
        self.pass_time(61 * DAY, DAY)
        self.assertNotEqual(self.trust.callers.credentials, before)
        self.assertEqual(self.trust.callers.credentials, self.trust.contexts.credentials)

    def test_unusable_state(self) -> None:
        """Whatever is wrong with the state directory is one line with the path."""
        path = Path(self.mktemp())
        path.touch()
        error = self.assertRaises(
            StateError, StandaloneServerTrust, self.clock, path, ["127.0.0.1"]
        )
        self.assertEqual(str(error), f"{path} is not a directory: remove it or choose another")

    def test_renews_its_own(self) -> None:
        """The server's certificate is renewed in time and in use without a restart."""
        before = self.trust.contexts.credentials.certificate
        self.pass_time(70 * DAY, DAY)
        after = self.trust.contexts.credentials.certificate
        self.assertGreater(after.not_valid_after_utc, before.not_valid_after_utc)
        self.assertEqual(self.trust.serving.not_after, after.not_valid_after_utc)
        self.assertIsNone(self.trust.serving.warning())
        (stored, _) = certificates_from_pem(Path(self.state, "server.pem").read_bytes())
        self.assertEqual(stored, after)

    def test_full_disk(self) -> None:
        """What cannot be replaced is one line each time, not a traceback, and tried again."""
        before = self.read_token()
        full = OSError(errno.ENOSPC, "full")
        with mock.patch("os.fsync", side_effect=full), capturedLogs() as events:
            self.pass_time(DAY, 60)
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assertEqual(self.read_token(), before)
        lines = {formatEvent(e) for e in events if e["log_level"] is LogLevel.error}
        self.assertEqual(
            lines,
            {
                f"replacing the join token failed: {self.state}/tokens.json cannot be written,"
                " the disk is full: make room"
            },
        )
        self.pass_time(60, 60)
        self.assertNotEqual(self.read_token(), before)

    def test_start_on_a_full_disk(self) -> None:
        """A server whose certificates and token are due starts with what it has."""
        self.trust.stopService()
        names = ("client.crt", "join-token", "tokens.json", "server.pem")
        before = [Path(self.state, name).read_bytes() for name in names]
        self.clock.advance(300 * DAY)
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
            self.start_server()
            left = self.trust.serving.not_after.timestamp() - self.clock.seconds()
            self.assertGreater(left, 80 * DAY)
            error = self.assertRaises(
                StateError, StandaloneServerTrust, self.clock, self.mktemp(), ["127.0.0.1"]
            )
            self.assertTrue(error.disk_is_full)
        self.assertEqual([Path(self.state, name).read_bytes() for name in names], before)

    def test_stops(self) -> None:
        """Stopping leaves nothing to happen later."""
        self.trust.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class AgentTrustTests(World):
    """The agent's facade."""

    def test_endpoint(self) -> None:
        """The endpoint that these tests use is what the interface says."""
        verifyObject(IStreamClientEndpoint, self.network)

    def test_enrolls(self) -> None:
        """An agent with the join token gets a certificate for its name and identifiers."""
        contexts = self.successResultOf(self.get_ready(self.agent()))
        identity = identity_from_certificate(contexts.credentials.certificate)
        self.assertEqual((identity.node, identity.identifiers), ("edge-1", EDGE_1))
        self.assertEqual(self.network.open_connections, 0)

    def test_tunnel(self) -> None:
        """What the agent gets is good for a tunnel to the server."""
        contexts = self.successResultOf(self.get_ready(self.agent()))
        _, server = self.connect(contexts)
        self.assertEqual(peer_serial(server), contexts.credentials.certificate.serial_number)

    def test_restart(self) -> None:
        """A restarted agent with a good certificate asks nobody, and needs no token."""
        state = self.mktemp()
        first = self.successResultOf(self.get_ready(self.agent(state=state)))
        self.network.reachable = False
        agent = self.started(self.open(self.clock, state, None))
        second = self.successResultOf(self.get_ready(agent))
        self.assertEqual(second.credentials.certificate, first.credentials.certificate)

    def test_started_ahead(self) -> None:
        """A certificate that has ended by a wrong clock is waited for, and used as it is.

        That is so without a token, with one that cannot be read any more, and with one that the
        server refuses; and whatever else would end an agent that is not enrolled.
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
        """An agent that has no certificate waits for the clock, too, and tells how wrong it is.

        That is the same where the server's certificate is not valid by it, where only the one that
        the agent gets is not, and where another server cannot be reached.
        """
        refused = "nowhere.test:10262: Connection was refused by other side.; "
        cases = (
            (-20 * 365 * DAY, "7300 days behind", ""),
            (200 * DAY, "200 days ahead of", ""),
            (40 * DAY, "40 days ahead of", ""),
            (200 * DAY, "200 days ahead of", refused),
        )
        for number, (ahead, told, more) in enumerate(cases):
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
                begin = f"{more}127.0.0.1:10262: this machine's clock is {told} the server's: it"
                self.assertTrue(text.startswith(begin), text)
            clock.ahead = 0.0
            for _ in range(40):
                self.network.settle()
                clock.advance(1)
            self.successResultOf(ready)
            self.assertEqual((agent.problem(), agent.warning()), (None, None))
            agent.stopService()

    def test_other_identifiers_without_a_token(self) -> None:
        """What no clock can mend ends an agent, also when its certificate has ended besides."""
        state = self.mktemp()
        self.successResultOf(self.get_ready(self.agent(state=state)))
        other = parse_identifiers("host=edge-1&host=camera")
        for ahead in (0.0, 200 * DAY):
            agent = self.started(self.open(SteppedClock(ahead), state, None, other))
            self.failureResultOf(self.get_ready(agent), StateError)

    def test_no_token(self) -> None:
        """An agent that has neither certificate nor token says what it needs."""
        agent = self.started(self.open(self.clock, self.mktemp(), None))
        failure = self.failureResultOf(self.get_ready(agent), StateError)
        self.assertIn("--join-token-file", str(failure.value))

    def test_unreadable_token(self) -> None:
        """An agent that cannot read its token ends with the reason."""

        def read_token() -> JoinToken:
            return JoinToken.parse("nonsense")

        self.failureResultOf(self.get_ready(self.agent(read_token=read_token)), BadToken)

    def test_refused(self) -> None:
        """A refusal ends the attempt: trying again would not change it."""
        self.successResultOf(self.get_ready(self.agent()))
        failure = self.failureResultOf(self.get_ready(self.agent()), EnrolmentRefused)
        self.assertEqual(failure.value.code, Refusal.ALREADY_ENROLLED)

    def test_refused_for_the_moment(self) -> None:
        """After a refusal for the moment the agent tries again by itself."""
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
        """An agent that is started before its server enrolls when that comes up."""
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
        """An agent that is stopped while it waits for its server waits no more."""
        self.network.reachable = False
        ready = self.get_ready(self.agent())
        ready.cancel()
        self.failureResultOf(ready, CancelledError)

    def test_second_server(self) -> None:
        """When one server is down, the next is asked."""
        down = MemoryServer(self.clock, self.trust.contexts, self.trust.enrolment_factory)
        down.reachable = False
        servers = [ServerAddress("127.0.0.1", 10262, down), self.server]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.network.settle()
        self.successResultOf(ready)

    def other_server(self) -> tuple[StandaloneServerTrust, ServerAddress]:
        """Start a server that has its own state directory, and another authority."""
        trust = StandaloneServerTrust(self.clock, self.mktemp(), ["127.0.0.1"])
        network = MemoryServer(self.clock, trust.contexts, trust.enrolment_factory)
        return trust, ServerAddress("127.0.0.1", 10262, network)

    def settle(self, servers: list[ServerAddress], steps: int = 10) -> None:
        """Let bytes flow to several servers, one after the other."""
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

    def test_renews_past_others(self) -> None:
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
        """When none can help later either, the refusal is raised, rather than the distrust."""
        servers = [self.second_server(), self.other_server()[1]]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.settle(servers)
        failure = self.failureResultOf(ready, EnrolmentRefused)
        self.assertEqual(failure.value.code, Refusal.BAD_TOKEN)

    def test_one_may_help_later(self) -> None:
        """While one server is away the agent waits for it, whatever the others say."""
        self.network.reachable = False
        servers = [self.second_server(), self.server]
        ready = Deferred.fromCoroutine(self.agent(servers=servers).ready())
        self.settle(servers)
        self.assertNoResult(ready)
        self.network.reachable = True
        self.clock.advance(1)
        self.settle(servers)
        self.successResultOf(ready)

    def test_revoked_is_told_first(self) -> None:
        """Of several refusals the one that the node is revoked is raised."""
        refused = [
            EnrolmentRefused(code, "no")
            for code in (Refusal.NOT_AUTHORIZED, Refusal.REVOKED, Refusal.BAD_TOKEN)
        ]

        async def ask(server: ServerAddress) -> Chain:
            raise refused[int(server.name)]

        servers = [ServerAddress(str(number), 10262, self.network) for number in range(3)]
        answer = Deferred.fromCoroutine(_first_answer(servers, ask))
        failure = self.failureResultOf(answer, EnrolmentRefused)
        self.assertEqual(failure.value.code, Refusal.REVOKED)

    def test_revoked_at_a_second_server(self) -> None:
        """A server of the same authority that has no record of the node can revoke it, too."""
        contexts = self.successResultOf(self.get_ready(self.agent()))
        identity = identity_from_certificate(contexts.credentials.certificate)
        self.second_server()
        self.assertFalse(self.second.revocations.is_revoked(identity))
        revoke_node(self.clock, self.second_state, "edge-1")
        self.second.revocations.refresh()
        self.assertTrue(self.second.revocations.is_revoked(identity))
        self.assertFalse(self.trust.revocations.is_revoked(identity))

    def test_told_to_wait(self) -> None:
        """An agent that is told to wait because of wrong tokens tries again by itself."""
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
        """An agent that was killed before it got the answer enrolls at its next start."""
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
        """A name that no node can have is refused before anything is done."""
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
        # OpenSSL compares with the real time, at which old and new certificate are good, then.
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
        """On a full disk the agent is known by certificates that it has in memory only."""
        # As above, and the third certificate is got by the second one.
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
        self.assertIn("not kept for a restart: the disk is full", agent.warning() or "")
        self.pass_time(3600)
        self.assertIsNone(agent.warning())
        self.assertNotEqual(Path(state, "node.pem").read_bytes(), stored)

    def connect(self, contexts: ClientContexts) -> tuple[SSL.Connection, SSL.Connection]:
        """Run a handshake for a tunnel, and give the agent's and the server's side."""
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
        """A revoked node gets in again with the server's new token, after its state is removed."""
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
        """Stopping leaves nothing to happen later."""
        agent = self.agent()
        self.successResultOf(self.get_ready(agent))
        agent.stopService()
        self.trust.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
