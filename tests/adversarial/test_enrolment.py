"""Enrolments that must be rejected: node names that are paths, weak keys, tokens of others."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from tests.pki.support import Issuer, state_directory
from tests.pki.world import ADDRESS, World
from yurttunnel.pki.authority import request_certificate
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_messages import EnrolmentRequest, Refusal
from yurttunnel.pki.records import read_record
from yurttunnel.pki.revocation import RevocationFailed, revoke_node
from yurttunnel.pki.token import TokenStore

PATHS = (
    "../edge-1",
    "../../x",
    "..",
    ".",
    "/etc/passwd",
    "edge-1/../../x",
    "edge-1\0.pem",
    "edge-1/",
    ".lock",
    "a\\..\\b",
    "~root",
    "%2e%2e",
)
"""Names that resolve outside a directory, or to a file in it that is not a node's record."""


class PathTests(World):
    """Node names are file names in the server's state directory."""

    def all_paths(self) -> set[Path]:
        """List all paths in the state directory and beside it."""
        return set(self.directory.path.parent.rglob("*"))

    def test_enrolments(self) -> None:
        """A node whose name is a path gets no certificate, and no file is created."""
        before = self.all_paths()
        for name in PATHS:
            request = EnrolmentRequest(
                name,
                "host=edge-1",
                request_certificate(new_key()),
                self.token.token_id,
                self.token.secret,
            )
            self.refuses(
                Refusal.BAD_REQUEST,
                "is not a node's name",
                lambda request=request: self.admission.decide(request, None, ADDRESS),
            )
        self.assertLessEqual({path.name for path in self.all_paths() - before}, {"nodes"})
        self.assertEqual([], self.directory.subdirectory("nodes").names())

    def test_revocations(self) -> None:
        """``--revoke-node`` reads and writes no file other than the node's record."""
        self.ask("edge-1")
        before = self.all_paths()
        for name in PATHS:
            self.assertRaises(ValueError, read_record, self.directory, name)
            error = self.assertRaises(
                RevocationFailed, revoke_node, self.clock, str(self.directory.path), name
            )
            self.assertIn("is not a node's name", str(error))
        self.assertEqual(before, self.all_paths())

    def test_a_linked_record(self) -> None:
        """A record that is a symbolic link is neither read nor written through."""
        target = Path(self.mktemp())
        target.write_text("not to be read")
        os.symlink(target.absolute(), self.directory.subdirectory("nodes").path / "edge-1")
        self.assertRaises(StateError, read_record, self.directory, "edge-1")
        self.assertEqual("not to be read", target.read_text())


class KeyTests(World):
    """Keys for which no certificate is issued although the token is valid."""

    def test_weak_keys(self) -> None:
        """Short RSA keys, curves that TLS does not have, and unsupported kinds of keys."""
        for key, algorithm in (
            (rsa.generate_private_key(65537, 1024), hashes.SHA256()),
            (dsa.generate_private_key(1024), hashes.SHA256()),
            (ec.generate_private_key(ec.SECP192R1()), hashes.SHA256()),
            (ed25519.Ed25519PrivateKey.generate(), None),
        ):
            builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
            csr = builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()
            request = EnrolmentRequest(
                "edge-1", "host=edge-1", csr, self.token.token_id, self.token.secret
            )
            self.refuses(
                Refusal.BAD_REQUEST,
                "key",
                lambda request=request: self.admission.decide(request, None, ADDRESS),
            )
        self.assertEqual([], self.directory.subdirectory("nodes").names())


class TokenTests(World):
    """Tokens that are valid elsewhere, or were valid before."""

    def test_of_another_server(self) -> None:
        """A token of a server with another authority is unknown."""
        other = Issuer.make(self)
        tokens = TokenStore(other.clock, state_directory(self), other.authority.pin)
        token = tokens.issue(600)
        self.refuses(Refusal.BAD_TOKEN, "join token is unknown", lambda: self.ask(token=token))

    def test_of_another_server_with_the_same_authority(self) -> None:
        """A token of another server with a copy of the authority is unknown."""
        authority = self.issuer.authority
        token = TokenStore(self.clock, state_directory(self), authority.pin).issue(600)
        self.refuses(Refusal.BAD_TOKEN, "join token is unknown", lambda: self.ask(token=token))

    def test_used_twice(self) -> None:
        """A token can enroll a second node, but not the same node with another key."""
        self.ask("edge-1")
        self.ask("edge-2")
        self.refuses(Refusal.ALREADY_ENROLLED, "edge-1", lambda: self.ask("edge-1"))

    def test_expired(self) -> None:
        """A token expires at the end of its lifetime."""
        self.clock.advance(601)
        self.refuses(Refusal.TOKEN_EXPIRED, "expired", self.ask)
