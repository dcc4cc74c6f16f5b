"""Agents of a worker, who wait until the first process has said who they are."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

from cryptography import x509
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer
from yurttunnel.pki.identity import identity_from_certificate
from yurttunnel.server.agents import AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.workers.admission import AdmittedAgents
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits


class FakeConnection:
    """A connection after its handshake."""

    handed_over = False

    def __init__(self, certificate):
        self.peer_certificate = certificate
        self.reading = True
        self.said = []
        self.transport = SimpleNamespace(
            pauseProducing=lambda: self.read(False),
            resumeProducing=lambda: self.read(True),
            getPeer=lambda: "192.0.2.7",
        )

    def read(self, reading):
        """Read or do not."""
        self.reading = reading

    def send_hello(self, hello):
        """Remember the answer."""
        self.said.append(hello)

    def start(self, session, hello):
        """Remember who carries what."""
        self.said.append(session)

    def refuse(self, code, text):
        """Remember the refusal."""
        self.said.append(code)


class AdmissionTests(SynchronousTestCase):
    """One agent, and the answers of the first process."""

    def setUp(self):
        """Make a worker's listener."""
        self.asked = []
        clock = Clock()
        self.registry = SessionRegistry(clock)
        self.agents = AdmittedAgents(
            SessionContext(clock, TunnelCounters(), MemoryBudget(1 << 24), RefuseStreams()),
            self.registry,
            AgentListenerSettings(Limits(), 0.8, "server", "test"),
            lambda number, certificate: self.asked.append((number, certificate)),
        )
        self.certificate = Issuer.make(self).node().certificate
        self.identity = identity_from_certificate(self.certificate)
        self.connection = FakeConnection(self.certificate)
        self.hello = Hello(Limits(), NO_SESSION, os.urandom(16), 0)

    def ask(self):
        """Have the agent send its HELLO; the number of the question."""
        self.agents.hello_received(self.connection, self.hello)
        ((number, certificate),) = self.asked
        self.assertEqual(x509.load_der_x509_certificate(certificate), self.certificate)
        return number

    def test_nothing_happens_before_the_answer(self):
        """Neither is anything read, nor has the node a session."""
        self.ask()
        self.assertFalse(self.connection.reading)
        self.assertEqual(self.connection.said, [])
        self.assertEqual(self.registry.direct_nodes(), [])

    def test_who_is_let_in_begins(self):
        """As the node that the first process names, and is told of so many servers."""
        self.agents.admitted(self.ask(), self.identity, 3)
        hello, session = self.connection.said
        self.assertEqual(hello.properties["servers"], "3")
        self.assertEqual(self.registry.direct("edge-1").tunnel, session)
        self.assertEqual(self.agents.identities("edge-1"), [self.identity])
        self.assertTrue(self.connection.reading)
        other = replace(self.identity, not_after=self.identity.not_before)
        self.agents.end("edge-1", Code.REVOKED, "another was revoked", other)
        self.assertEqual(self.registry.direct("edge-1").tunnel, session)
        self.agents.end("edge-1", Code.REVOKED, "it has been revoked", self.identity)
        self.assertEqual(self.registry.direct_nodes(), [])

    def test_who_is_not_let_in_is_told(self):
        """By the code of the first process."""
        self.agents.refused(self.ask(), Code.REVOKED, "it has been revoked")
        self.assertEqual(self.connection.said, [Code.REVOKED])

    def test_a_claim_that_is_not_covered_is_refused(self):
        """What the HELLO says is held against what the first process has said."""
        self.hello = Hello(
            Limits(), NO_SESSION, bytes(16), 0, properties={"identifiers": "host=a-stranger"}
        )
        self.agents.admitted(self.ask(), self.identity, None)
        self.assertEqual(self.connection.said, [Code.NOT_AUTHORIZED])

    def test_an_agent_that_has_left_is_forgotten(self):
        """The answer is for nobody then."""
        number = self.ask()
        self.agents.connection_ended(self.connection, Failure(ConnectionDone()))
        self.agents.admitted(number, self.identity, None)
        self.agents.refused(number, Code.REVOKED, "")
        self.assertEqual(self.connection.said, [])

    def test_nobody_comes_in_without_a_certificate(self):
        """The first process is not even asked."""
        self.connection.peer_certificate = None
        with self.assertRaises(Violation) as caught:
            self.agents.hello_received(self.connection, self.hello)
        self.assertIs(caught.exception.code, Code.NOT_AUTHORIZED)
        self.assertEqual(self.asked, [])
