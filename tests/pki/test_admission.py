"""Admission of nodes by join tokens and by certificates."""

from __future__ import annotations

import datetime
import json
from ipaddress import ip_address
from unittest import mock

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from tests.certificates import common_name
from tests.pki.support import EDGE_1
from tests.pki.world import ADDRESS, World
from yurttunnel.pki import revocation
from yurttunnel.pki.authority import DEFAULT_NODE_LIFETIME, request_certificate
from yurttunnel.pki.credentials import BACKDATE, PrivateKey, certificates_from_pem, new_key
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.enrolment_messages import (
    EnrolmentRefused,
    EnrolmentRequest,
    Refusal,
)
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.pki.records import NODES_DIRECTORY, NodeRecord
from yurttunnel.pki.revocation import revoke_node
from yurttunnel.pki.token import JoinToken


class TokenAdmissionTests(World):
    """Enrolment by a join token."""

    def test_many_nodes(self) -> None:
        """One token enrolls any number of different nodes."""
        for node in ("edge-1", "edge-2", "edge-3"):
            self.assertEqual(self.identity(self.ask(node)).node, node)

    def test_names_come_from_the_request(self) -> None:
        """Names inside the certificate request are not copied."""
        key = new_key()
        builder = x509.CertificateSigningRequestBuilder().subject_name(common_name("edge-2"))
        names = x509.SubjectAlternativeName([x509.DNSName("edge-2")])
        csr = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
        request = EnrolmentRequest(
            "edge-1",
            "ipv4=192.0.2.7",
            csr.public_bytes(serialization.Encoding.PEM).decode(),
            self.token.token_id,
            self.token.secret,
        )
        response = self.admission.decide(request, None, ADDRESS)
        identity = self.identity(certificates_from_pem(response.certificate.encode())[0])
        self.assertEqual(identity.node, "edge-1")
        self.assertEqual(identity.identifiers.hosts, {"edge-1"})

    def test_wrong_token(self) -> None:
        """A wrong secret or an unknown token is rejected."""
        for token in (
            JoinToken(self.token.token_id, "0" * 32, self.token.pin),
            JoinToken("0" * 16, self.token.secret, self.token.pin),
        ):
            self.refuses(
                Refusal.BAD_TOKEN, "join token is unknown", lambda t=token: self.ask(token=t)
            )

    def test_expired_token(self) -> None:
        """An expired token is rejected."""
        self.clock.advance(600)
        self.refuses(Refusal.TOKEN_EXPIRED, "expired at", self.ask)

    def test_after_the_end(self) -> None:
        """An expired authority enrolls no node, and the error contains its expiry."""
        self.clock.advance(11 * 365 * 86400)
        token = self.tokens.issue()
        words = (
            f"authority expired at {self.issuer.authority.certificate.not_valid_after_utc:%F %T}"
        )
        self.refuses(Refusal.UNAVAILABLE, words, lambda: self.ask(token=token))

    def test_replayed_token(self) -> None:
        """An enrolled name is not enrolled again, with the same or a newer token."""
        self.ask()
        for token in (self.token, self.tokens.issue()):
            self.refuses(
                Refusal.ALREADY_ENROLLED,
                "edge-1 is enrolled already",
                lambda t=token: self.ask(token=t),
            )

    def test_replay_after_restart(self) -> None:
        """A restarted server knows the enrolled nodes."""
        self.ask()
        self.restart()
        self.refuses(Refusal.ALREADY_ENROLLED, "edge-1 is enrolled already", self.ask)

    def test_same_key(self) -> None:
        """A node with the key of its certificate may enroll again, with other identifiers."""
        key = new_key()
        first = self.ask(key=key)
        again = self.ask(key=key, identifiers="host=edge-1&cidr=10.0.0.0/8")
        self.assertEqual(self.identity(again).enrolment, self.identity(first).enrolment)
        self.assertEqual(len(self.identity(again).identifiers.networks), 1)

    def test_key_of_a_lost_renewal(self) -> None:
        """After a renewal whose response was lost, the previous key is still accepted."""
        key = new_key()
        certificate = self.ask(key=key)
        for _ in range(3):
            self.ask(presented=certificate)
        self.ask(key=key)

    def test_after_revocation(self) -> None:
        """A revoked node is enrolled again only with a newer token, and as a new enrolment."""
        key = new_key()
        revoked = self.ask(key=key)
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.refuses(Refusal.TOKEN_EXPIRED, "older than the revocation", self.ask)
        self.refuses(Refusal.TOKEN_EXPIRED, "older than the revocation", lambda: self.ask(key=key))
        self.clock.advance(1)
        again = self.ask(token=self.tokens.issue())
        self.assertTrue(self.revocations.is_revoked(self.identity(revoked)))
        self.assertFalse(self.revocations.is_revoked(self.identity(again)))
        self.refuses(
            Refusal.ALREADY_ENROLLED,
            "enrolled already",
            lambda: self.ask(token=self.tokens.issue()),
        )

    def test_revoked_before_it_was_enrolled(self) -> None:
        """A node that was revoked without a record is enrolled only with a newer token."""
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.refuses(Refusal.TOKEN_EXPIRED, "older than the revocation", self.ask)
        self.clock.advance(1)
        certificate = self.ask(token=self.tokens.issue())
        self.assertFalse(self.revocations.is_revoked(self.identity(certificate)))
        self.ask(presented=certificate)
        self.restart()
        self.assertFalse(self.revocations.is_revoked(self.identity(certificate)))

    def test_revoked_while_it_enrolled(self) -> None:
        """The same holds if the record is written after the command has looked for it."""
        key = new_key()
        self.ask(key=key)
        with mock.patch.object(revocation, "read_record", return_value=None):
            revoke_node(self.clock, self.directory.path, "edge-1")
        # Certificates are backdated by this time.
        self.clock.advance(BACKDATE.total_seconds() + 1)
        self.refuses(Refusal.TOKEN_EXPIRED, "older than the revocation", lambda: self.ask(key=key))
        self.assertFalse(self.revocations.is_enrolled("edge-1"))
        again = self.ask(key=key, token=self.tokens.issue())
        self.assertFalse(self.revocations.is_revoked(self.identity(again)))

    def test_revoked_while_it_enrolled_later(self) -> None:
        """The same holds if the record is written after the command has read the clock."""
        key = new_key()
        newest = revocation.newest_token
        enrolled = []

        def look_and_enroll(directory: StateDirectory) -> datetime.datetime | None:
            found = newest(directory)
            self.clock.advance(0.01)
            enrolled.append(self.ask(key=key))
            return found

        with mock.patch.object(revocation, "newest_token", look_and_enroll):
            revoke_node(self.clock, self.directory.path, "edge-1")
        for _ in range(2):
            self.refuses(Refusal.TOKEN_EXPIRED, "than the revocation", lambda: self.ask(key=key))
            self.assertTrue(self.revocations.is_revoked(self.identity(enrolled[0])))
            self.assertFalse(self.revocations.is_enrolled("edge-1"))
            self.restart()

    def test_names_of_others(self) -> None:
        """A node cannot have a name of another in any form, nor its address as a name."""
        self.ask("edge-1", "host=edge-1&host=camera&ipv4=192.0.2.7&ipv6=2001:db8::7")
        self.ask("192.0.2.9")
        for taken in (
            "host=edge-1",
            "host=camera",
            "host=192.0.2.7",
            "host=192.0.2.9",
            "ipv4=192.0.2.9",
            "ipv6=::ffff:192.0.2.9",
            "cidr=192.0.2.9/32",
        ):
            owner = "192.0.2.9" if "192.0.2.9" in taken else "edge-1"
            self.refuses(
                Refusal.ALREADY_ENROLLED,
                f"belongs to node {owner}: leave it out of edge-2's --agent-identifiers",
                lambda t=taken: self.ask("edge-2", f"host=edge-2&{t}"),
            )
        for name in ("camera", "192.0.2.7"):
            self.refuses(
                Refusal.ALREADY_ENROLLED,
                f"{name} belongs to node edge-1",
                lambda name=name: self.ask(name),
            )

    def test_the_same_private_addresses_on_two_sites(self) -> None:
        """Several nodes may have an address, also as a network of a single address."""
        self.ask("edge-1", "ipv4=192.168.1.10&ipv6=fd00::7")
        self.ask("edge-2", "ipv4=192.168.1.10&cidr=fd00::7/128")
        self.ask("edge-3", "cidr=::ffff:192.168.1.10/128")
        self.restart()
        for address, nodes in (("192.168.1.10", {"1", "2", "3"}), ("fd00::7", {"1", "2"})):
            having = self.ownership.nodes_with(ip_address(address))
            self.assertEqual({f"edge-{node}" for node in nodes}, set(having))
        for node in ("mallory", "other"):
            self.ask(node, "cidr=192.0.2.6/31&cidr=127.0.0.1/32&default-route=true")

    def test_shared(self) -> None:
        """Several nodes may have loopback addresses, networks and the default route."""
        shared = "ipv4=127.0.0.1&ipv6=::1&cidr=10.0.0.0/8&default-route=true"
        for node in ("edge-1", "edge-2"):
            self.ask(node, shared)

    def test_many_nodes_cost_nothing(self) -> None:
        """Finding the owner of a name does not examine unrelated nodes."""
        for number in range(20):
            self.ask(f"edge-{number}")
        with mock.patch.object(
            NodeRecord, "claims", autospec=True, side_effect=NodeRecord.claims
        ) as claims:
            self.ask("edge-20")
        self.assertLess(claims.call_count, 3)

    def test_names_of_revoked_nodes_are_free(self) -> None:
        """The names of a revoked node are free for others."""
        self.ask("edge-1", "host=camera")
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.ask("edge-2", "host=camera")

    def test_dropped_names_stay_reserved(self) -> None:
        """A name that is no longer claimed stays the node's, since older certificates are valid."""
        key = new_key()
        self.ask("edge-1", "host=camera", key=key)
        self.ask("edge-1", "host=edge-1", key=key)
        self.refuses(Refusal.ALREADY_ENROLLED, "camera", lambda: self.ask("edge-2", "host=camera"))

    def test_dropped_names_are_free_in_time(self) -> None:
        """It is free once its last certificate has expired, unless the newest has it, too."""
        key = new_key()

        def ask(node: str, identifiers: str, key: PrivateKey | None = None) -> None:
            self.ask(node, identifiers, key, self.tokens.issue())

        ask("edge-1", "host=camera&host=door", key)
        self.clock.advance(DEFAULT_NODE_LIFETIME / 2)
        ask("edge-1", "host=door", key)
        self.clock.advance(DEFAULT_NODE_LIFETIME / 2 - 1)
        self.restart()
        ask("edge-1", "host=door", key)
        self.refuses(Refusal.ALREADY_ENROLLED, "camera", lambda: ask("edge-2", "host=camera"))
        self.clock.advance(1)
        ask("edge-1", "host=door", key)
        ask("edge-2", "host=camera")
        self.clock.advance(10 * DEFAULT_NODE_LIFETIME)
        self.restart()
        for taken in ("door", "edge-1"):
            self.refuses(
                Refusal.ALREADY_ENROLLED, taken, lambda t=taken: ask("edge-3", f"host={t}")
            )

    def test_records_without_ends(self) -> None:
        """An identifier in a record without an expiry remains the node's."""
        key = new_key()
        self.ask("edge-1", "host=camera", key)
        nodes = self.directory.subdirectory(NODES_DIRECTORY)
        record = json.loads(nodes.read("edge-1") or b"")
        del record["ends"]
        nodes.write("edge-1", json.dumps(record).encode())
        self.restart()
        self.clock.advance(10 * DEFAULT_NODE_LIFETIME)
        self.ask("edge-1", "host=door", key, self.tokens.issue())
        self.refuses(
            Refusal.ALREADY_ENROLLED,
            "camera",
            lambda: self.ask("edge-2", "host=camera", token=self.tokens.issue()),
        )

    def test_bad_requests(self) -> None:
        """Malformed requests are rejected with the reason."""
        token = (self.token.token_id, self.token.secret)
        csr = request_certificate(new_key())
        for request, words in (
            (EnrolmentRequest("Edge-1", "host=edge-1", csr, *token), "is not a node's name"),
            (EnrolmentRequest("../../x", "host=edge-1", csr, *token), "is not a node's name"),
            (EnrolmentRequest("edge-1", "host=a b", csr, *token), "host=a b"),
            (EnrolmentRequest("edge-1", "", csr, *token), "no identifier"),
            (EnrolmentRequest("edge-1", "host=edge-1", "junk", *token), "PKCS #10"),
            (EnrolmentRequest("tunnel-proxy-client", "host=a", csr, *token), "another one"),
            (
                EnrolmentRequest("kube-apiserver-kubelet-client", "host=a", csr, *token),
                "another one",
            ),
        ):
            self.refuses(
                Refusal.BAD_REQUEST,
                words,
                lambda r=request: self.admission.decide(r, None, ADDRESS),
            )
        self.assertEqual(self.directory.subdirectory("nodes").names(), [])

    def test_identifiers_do_not_pile_up(self) -> None:
        """All unexpired identifiers of a node count against the limit of one certificate."""
        key = new_key()
        self.ask("edge-1", "&".join(f"host=a{n}" for n in range(200)), key=key)
        more = "&".join(f"host=b{n}" for n in range(200))
        self.refuses(
            Refusal.BAD_REQUEST, "more than 256", lambda: self.ask("edge-1", more, key=key)
        )
        self.restart()
        self.ask("edge-1", key=key)
        self.clock.advance(DEFAULT_NODE_LIFETIME)
        self.ask("edge-1", more, key, self.tokens.issue())

    def test_wrong_tokens_are_limited(self) -> None:
        """After ten wrong tokens an address is rate-limited; other addresses are not."""
        wrong = JoinToken("0" * 16, "0" * 32, self.token.pin)
        for _ in range(10):
            self.refuses(Refusal.BAD_TOKEN, "", lambda: self.ask(token=wrong))
        self.refuses(Refusal.RATE_LIMITED, "wait 60 seconds", lambda: self.ask(token=wrong))
        self.refuses(Refusal.BAD_TOKEN, "", lambda: self.ask(token=wrong, address="192.0.2.100"))
        self.clock.advance(60)
        self.refuses(Refusal.BAD_TOKEN, "", lambda: self.ask(token=wrong))

    def test_good_tokens_are_not_limited(self) -> None:
        """Valid tokens from the same address are not rate-limited."""
        wrong = JoinToken("0" * 16, "0" * 32, self.token.pin)
        for _ in range(20):
            self.assertRaises(EnrolmentRefused, self.ask, token=wrong)
        self.ask()

    def test_strangers_are_not_parsed(self) -> None:
        """Without a valid token or certificate, the rest of the request is not parsed."""
        junk = EnrolmentRequest("../x", "", "junk", "0" * 16, "0" * 32)
        self.refuses(Refusal.BAD_TOKEN, "", lambda: self.admission.decide(junk, None, ADDRESS))
        junk = EnrolmentRequest("../x", "", "junk")
        self.refuses(Refusal.NOT_AUTHORIZED, "", lambda: self.admission.decide(junk, None, ADDRESS))

    def test_token_of_before_the_revocation(self) -> None:
        """A token is older than a later revocation, even if the clock is set back."""
        self.ask()
        self.clock.rightNow -= 3600
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.refuses(Refusal.TOKEN_EXPIRED, "older than the revocation", self.ask)

    def test_token_of_after_the_revocation(self) -> None:
        """A token issued after a revocation is newer, even if the clock is set back."""
        self.ask()
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.revocations.refresh()
        self.clock.rightNow -= 3600
        token = self.tokens.issue(after=self.revocations.last_revocation())
        again = self.ask(token=token)
        self.assertFalse(self.revocations.is_revoked(self.identity(again)))

    def test_renewals_are_not_limited(self) -> None:
        """Wrong tokens do not rate-limit renewals of enrolled nodes at the same address."""
        certificate = self.ask()
        wrong = JoinToken("0" * 16, "0" * 32, self.token.pin)
        for _ in range(10):
            self.refuses(Refusal.BAD_TOKEN, "", lambda: self.ask(token=wrong))
        self.ask(presented=certificate)


class RenewalAdmissionTests(World):
    """Renewal by a certificate."""

    def setUp(self) -> None:
        """Enroll one node."""
        super().setUp()
        self.certificate = self.ask("edge-1", "host=edge-1&ipv4=192.0.2.7&cidr=10.0.0.0/8")

    def test_renewed(self) -> None:
        """A renewal keeps the enrolment and grants the requested identifiers."""
        again = self.ask("edge-1", "host=edge-1&ipv4=192.0.2.7", presented=self.certificate)
        self.assertEqual(self.identity(again).enrolment, self.identity(self.certificate).enrolment)
        self.assertEqual(self.identity(again).identifiers, EDGE_1)
        self.assertNotEqual(again.serial_number, self.certificate.serial_number)

    def test_other_name(self) -> None:
        """A node's certificate does not renew another node's."""
        self.ask("edge-2")
        self.refuses(
            Refusal.NOT_AUTHORIZED,
            "that of edge-1, not edge-2",
            lambda: self.ask("edge-2", presented=self.certificate),
        )

    def test_more_identifiers(self) -> None:
        """A renewal grants no identifiers beyond those of the certificate."""
        self.refuses(
            Refusal.NOT_AUTHORIZED,
            "does not cover host=camera, default-route=true",
            lambda: self.ask(
                "edge-1", "host=camera&default-route=true", presented=self.certificate
            ),
        )

    def test_one_more_identifier(self) -> None:
        """A single additional identifier is rejected, however close to a covered one."""
        for item in (
            "host=camera",
            "ipv4=192.0.2.8",
            "ipv4=11.0.0.1",
            "ipv6=2001:db8::8",
            "ipv6=::ffff:192.0.2.8",
            "cidr=10.0.0.0/7",
            "cidr=11.0.0.0/8",
            "cidr=192.0.2.8/32",
            "cidr=0.0.0.0/0",
            "default-route=true",
        ):
            for identifiers in (item, f"host=edge-1&ipv4=192.0.2.7&cidr=10.0.0.0/8&{item}"):
                self.refuses(
                    Refusal.NOT_AUTHORIZED,
                    "the certificate of edge-1 does not cover",
                    lambda i=identifiers: self.ask("edge-1", i, presented=self.certificate),
                )
        for item in (
            "ipv4=10.1.2.3",
            "cidr=10.1.0.0/16",
            "ipv6=::ffff:192.0.2.7",
            "cidr=192.0.2.7/32",
        ):
            self.ask("edge-1", f"host=edge-1&{item}", presented=self.certificate)

    def test_what_is_anothers_by_now(self) -> None:
        """An address in the node's own network is not granted if it is another node's name."""
        self.ask("10.1.2.3")
        for item in ("ipv4=10.1.2.3", "cidr=10.1.2.3/32", "cidr=::ffff:10.1.2.3/128"):
            self.refuses(
                Refusal.ALREADY_ENROLLED,
                "10.1.2.3 belongs to node 10.1.2.3",
                lambda i=item: self.ask("edge-1", i, presented=self.certificate),
            )
        self.ask("edge-1", "ipv4=10.1.2.4", presented=self.certificate)
        self.refuses(
            Refusal.ALREADY_ENROLLED,
            "10.1.2.4 belongs to node edge-1",
            lambda: self.ask("10.1.2.4", token=self.token),
        )

    def test_revoked(self) -> None:
        """A revoked certificate is not renewed, as soon as the command has returned."""
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.refuses(
            Refusal.REVOKED, "revoked", lambda: self.ask("edge-1", presented=self.certificate)
        )

    def test_revoked_then_enrolled_again(self) -> None:
        """The certificate of a previous enrolment is not renewed after a new enrolment."""
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.clock.advance(1)
        self.ask("edge-1", token=self.tokens.issue())
        self.refuses(
            Refusal.REVOKED, "revoked", lambda: self.ask("edge-1", presented=self.certificate)
        )

    def test_expired(self) -> None:
        """An expired certificate is not renewed."""
        self.clock.advance(31 * 86400)
        self.refuses(
            Refusal.NOT_AUTHORIZED, "expired", lambda: self.ask(presented=self.certificate)
        )

    def test_not_enrolled_here(self) -> None:
        """A certificate without an enrolment in the records is not renewed."""
        for node in (self.issuer.node("edge-9"), self.issuer.node("edge-1")):
            name = self.identity(node.certificate).node
            self.refuses(
                Refusal.NOT_AUTHORIZED,
                "was not enrolled here",
                lambda n=name, c=node.certificate: self.ask(n, presented=c),
            )

    def test_callers_certificate(self) -> None:
        """A caller's certificate is not renewed as a node's."""
        caller = self.issuer.authority.sign_client(new_key().public_key(), CALLER_NAME)
        self.refuses(Refusal.NOT_AUTHORIZED, "", lambda: self.ask("edge-1", presented=caller))

    def test_nothing_presented(self) -> None:
        """A request without a token and a certificate is rejected."""
        request = EnrolmentRequest("edge-1", "host=edge-1", request_certificate(new_key()))
        self.refuses(
            Refusal.NOT_AUTHORIZED,
            "neither a join token nor a certificate",
            lambda: self.admission.decide(request, None, ADDRESS),
        )
