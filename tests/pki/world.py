"""A server's state, and helpers to request certificates."""

from __future__ import annotations

from collections.abc import Callable

from cryptography import x509
from twisted.trial.unittest import TestCase

from tests.pki.support import Issuer, clock_now, state_directory
from yurttunnel.pki.admission import Admission
from yurttunnel.pki.authority import request_certificate
from yurttunnel.pki.credentials import PrivateKey, certificates_from_pem, new_key
from yurttunnel.pki.enrolment_messages import (
    EnrolmentRefused,
    EnrolmentRequest,
    Refusal,
)
from yurttunnel.pki.identity import (
    NodeIdentity,
    identity_from_certificate,
)
from yurttunnel.pki.ownership import Ownership
from yurttunnel.pki.records import NodeRecords
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import JoinToken, TokenStore

ADDRESS = "192.0.2.99"


class World(TestCase):
    """A server's state, and helpers to request certificates."""

    def setUp(self) -> None:
        """Create the state, with one join token."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.directory = state_directory(self)
        self.tokens = TokenStore(self.clock, self.directory, self.issuer.authority.pin)
        self.restart()
        self.token = self.tokens.issue(600)

    def restart(self) -> None:
        """Read the state again, as a restarted server does."""
        records = NodeRecords(self.directory)
        self.revocations = Revocations(self.clock, self.directory, records)
        self.ownership = Ownership(records, self.revocations)
        self.admission = Admission(
            self.clock,
            self.issuer.authority,
            self.tokens,
            records,
            self.revocations,
            self.ownership,
        )

    def ask(
        self,
        node: str = "edge-1",
        identifiers: str = "",
        key: PrivateKey | None = None,
        token: JoinToken | None = None,
        presented: x509.Certificate | None = None,
        address: str = ADDRESS,
    ) -> x509.Certificate:
        """Request a certificate: a renewal with ``presented``, otherwise with the join token."""
        used = None if presented is not None else token or self.token
        request = EnrolmentRequest(
            node=node,
            identifiers=identifiers or f"host={node}",
            csr=request_certificate(key or new_key()),
            token_id=used.token_id if used else "",
            token_secret=used.secret if used else "",
        )
        response = self.admission.decide(request, presented, address)
        return certificates_from_pem(response.certificate.encode())[0]

    def refuses(self, code: Refusal, words: str, ask: Callable[[], object]) -> None:
        """Assert that a request is rejected."""
        error = self.assertRaises(EnrolmentRefused, ask)
        self.assertEqual(error.code, code, error.text)
        self.assertIn(words, error.text)

    def identity(self, certificate: x509.Certificate) -> NodeIdentity:
        """Return the identity in a certificate."""
        return identity_from_certificate(certificate)
