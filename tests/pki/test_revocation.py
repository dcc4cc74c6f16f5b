"""Revocation of nodes: the command, and the server that watches the file."""

from __future__ import annotations

import datetime
import errno
import os
from unittest import mock

from twisted.trial.unittest import TestCase

from tests.logged import Logged
from tests.pki.support import EDGE_1, Issuer, clock_now, state_directory
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import BACKDATE
from yurttunnel.pki.directory import RESERVE, StateError
from yurttunnel.pki.identity import NodeIdentity, identity_from_certificate, parse_identifiers
from yurttunnel.pki.records import NodeRecord, NodeRecords
from yurttunnel.pki.revocation import (
    RESERVE_INTERVAL,
    RevocationFailed,
    Revocations,
    revoke_node,
)


class RevocationTests(TestCase):
    """A command and a running server on the same directory."""

    def setUp(self) -> None:
        """Enroll two nodes, and start the server's part."""
        self.clock = clock_now()
        self.directory = state_directory(self)
        self.records = NodeRecords(self.directory)
        self.issuer = Issuer.make(self)
        for node in ("edge-1", "edge-2"):
            self.enroll(node, f"a{node[-1]}")
        self.revoked: list[str] = []
        self.revocations = Revocations(self.clock, self.directory, self.records)
        self.revocations.on_revoked(self.revoked.append)
        self.revocations.startService()
        self.addCleanup(self.revocations.stopService)

    def enroll(self, node: str, enrolment: str) -> None:
        """Record an enrolment."""
        self.records.put(NodeRecord(node, EDGE_1, enrolment, ("key",), utc_now(self.clock)))

    def identity(self, node: str, enrolment: str) -> NodeIdentity:
        """Return the identity of a certificate of an enrolment."""
        certificate = self.issuer.node(node, enrolment=enrolment).certificate
        return identity_from_certificate(certificate)

    def revoke(self, node: str = "edge-1") -> str:
        """Run the command."""
        return revoke_node(self.clock, self.directory.path, node)

    def test_noticed_within_a_second(self) -> None:
        """A running server notices a revocation in less than a second, and once."""
        self.revoke()
        self.clock.advance(0.5)
        self.assertEqual(self.revoked, ["edge-1"])
        self.clock.pump([0.25] * 10)
        self.assertEqual(self.revoked, ["edge-1"])

    def test_every_certificate_of_the_enrolment(self) -> None:
        """All certificates of the enrolment are revoked, others are not."""
        first, renewed = self.identity("edge-1", "a1"), self.identity("edge-1", "a1")
        self.assertFalse(self.revocations.is_revoked(first))
        self.revoke()
        self.revocations.refresh()
        for identity, expected in (
            (first, True),
            (renewed, True),
            (self.identity("edge-2", "a2"), False),
        ):
            self.assertEqual(self.revocations.is_revoked(identity), expected)

    def test_names_in_use(self) -> None:
        """A name is taken by an enrolled node until it is revoked."""
        self.assertTrue(self.revocations.is_enrolled("edge-1"))
        self.assertFalse(self.revocations.is_enrolled("edge-9"))
        self.revoke()
        self.revocations.refresh()
        self.assertFalse(self.revocations.is_enrolled("edge-1"))
        self.assertTrue(self.revocations.is_enrolled("edge-2"))

    def test_enrolled_again(self) -> None:
        """Certificates of an enrolment that was recorded later are valid, also after renewals."""
        self.revoke()
        self.clock.advance(0.25)
        self.enroll("edge-1", "b1")
        self.assertFalse(self.revocations.is_revoked(self.identity("edge-1", "b1")))
        self.assertTrue(self.revocations.is_revoked(self.identity("edge-1", "a1")))

    def test_enrolled_elsewhere(self) -> None:
        """An unknown node is revoked by name, and the operator is informed."""
        identity = self.identity("edge-9", "c1")
        self.assertFalse(self.revocations.is_revoked(identity))
        sentence = self.revoke("edge-9")
        self.assertIn("node edge-9 was not enrolled at this server, but", sentence)
        self.clock.advance(0.5)
        self.assertEqual(self.revoked, ["edge-9"])
        self.assertTrue(self.revocations.is_revoked(identity))
        later = Revocations(self.clock, self.directory, self.records)
        self.assertTrue(later.is_revoked(identity))
        self.assertTrue(later.is_revoked(self.identity("edge-9", "")))
        self.assertFalse(later.is_revoked(self.identity("edge-8", "c2")))

    def test_certificates_of_before(self) -> None:
        """The name is revoked for certificates that are up to five minutes newer, and no others."""
        self.revoke("edge-9")
        self.revocations.refresh()
        for age, expected in ((-240, True), (0, True), (240, True), (360, False)):
            self.issuer.clock.rightNow = self.clock.rightNow + age
            identity = self.identity("edge-9", "c1")
            self.assertEqual(self.revocations.is_revoked(identity), expected, age)

    def test_the_equal_instant(self) -> None:
        """A certificate or enrolment of the same instant counts as older than the revocation."""
        for node in ("edge-1", "edge-9"):
            self.revoke(node)
        self.revocations.refresh()
        now = utc_now(self.clock)
        moment = datetime.timedelta(microseconds=1)
        for begin, expected in ((now - moment, True), (now, True), (now + moment, False)):
            elsewhere = NodeIdentity("edge-9", EDGE_1, begin, now, "c1")
            self.assertEqual(self.revocations.is_revoked(elsewhere), expected, begin - now)
        here = NodeIdentity("edge-1", EDGE_1, now - BACKDATE, now, "b1")
        for enrolled, expected in ((now - moment, True), (now, True), (now + moment, False)):
            self.records.put(NodeRecord("edge-1", EDGE_1, "b1", ("key",), enrolled))
            self.assertEqual(self.revocations.is_revoked(here), expected, enrolled - now)

    def test_enrolled_again_elsewhere(self) -> None:
        """Revoking also covers a newer enrolment at another server, besides the recorded one."""
        self.revoke()
        self.clock.advance(3600)
        self.issuer.clock.rightNow = self.clock.rightNow
        elsewhere = self.identity("edge-1", "b1")
        self.assertFalse(self.revocations.is_revoked(elsewhere))
        self.revoked.clear()
        self.assertEqual(self.revoke(), "node edge-1 is revoked")
        self.clock.advance(0.5)
        self.assertEqual(self.revoked, ["edge-1"])
        self.assertTrue(self.revocations.is_revoked(elsewhere))

    def test_clock_set_back(self) -> None:
        """Revoking again by an earlier clock does not restore certificates."""
        self.revoke("edge-9")
        first = utc_now(self.clock)
        self.clock.rightNow -= 3600
        self.revoke("edge-9")
        later = Revocations(self.clock, self.directory, self.records)
        self.assertEqual(later.revoked_at("edge-9"), first)

    def test_no_list_without_end(self) -> None:
        """Repeated revocations of a node keep one entry."""
        for _ in range(5):
            self.revoke("edge-9")
            self.clock.advance(1)
        self.assertEqual((self.directory.read("revoked.json") or b"").count(b"edge-9"), 1)

    def test_restart(self) -> None:
        """A server that is started later knows the revocations, and calls no callbacks for them."""
        self.revoke()
        later = Revocations(self.clock, self.directory, self.records)
        later.on_revoked(self.fail)
        later.startService()
        self.addCleanup(later.stopService)
        self.assertTrue(later.is_revoked(self.identity("edge-1", "a1")))
        self.assertEqual(later.revoked_at("edge-1"), utc_now(self.clock))
        self.assertIsNone(later.revoked_at("edge-2"))

    def test_several(self) -> None:
        """Revocations accumulate, also those of one node that was enrolled again."""
        self.revoke("edge-1")
        self.clock.advance(1)
        self.revoke("edge-2")
        self.enroll("edge-1", "b1")
        self.clock.advance(1)
        self.revoke("edge-1")
        self.clock.advance(1)
        self.assertEqual(self.revoked, ["edge-1", "edge-2", "edge-1"])
        for node, enrolment in (("edge-1", "a1"), ("edge-2", "a2"), ("edge-1", "b1")):
            self.assertTrue(self.revocations.is_revoked(self.identity(node, enrolment)))

    def test_failures_of_the_command(self) -> None:
        """The command reports why it revokes nothing."""
        error = self.assertRaises(RevocationFailed, self.revoke, "../ca.key")
        self.assertIn("is not a node's name", str(error))
        missing = self.mktemp()
        error = self.assertRaises(StateError, revoke_node, self.clock, missing, "edge-1")
        self.assertIn("does not exist", str(error))

    def test_broken_record(self) -> None:
        """If the node's record cannot be read, the command fails."""
        self.directory.subdirectory("nodes").write("edge-1", b"{")
        error = self.assertRaises(StateError, self.revoke)
        self.assertIn("nodes/edge-1 is not a node's record", str(error))

    def test_broken_file(self) -> None:
        """A broken file keeps known revocations, is a problem until repaired, and logged once."""
        self.assertIsNone(self.revocations.problem)
        self.revoke()
        self.clock.advance(1)
        good = self.directory.read("revoked.json") or b""

        logged = Logged(self)
        self.directory.write("revoked.json", b'{"revoked": [')
        self.clock.pump([0.25] * 20)
        [message] = [each["problem"] for each in logged.events if "problem" in each]
        self.assertIn("revoked.json is not a list of revocations", message)
        self.assertEqual(self.revocations.problem, message)
        self.assertTrue(self.revocations.is_revoked(self.identity("edge-1", "a1")))
        self.assertRaises(StateError, self.revoke, "edge-2")
        self.directory.write("revoked.json", good)
        self.revoke("edge-2")
        self.clock.advance(1)
        self.assertEqual(self.revoked, ["edge-1", "edge-2"])
        self.assertIsNone(self.revocations.problem)

    def test_a_lost_file_lifts_no_revocation(self) -> None:
        """While the server runs, removing the file restores no node."""
        self.revoke()
        self.clock.advance(1)
        self.directory.remove("revoked.json")
        self.clock.advance(1)
        self.assertTrue(self.revocations.is_revoked(self.identity("edge-1", "a1")))

    def test_unreadable_at_start(self) -> None:
        """A server does not start if it cannot read the revocations."""
        self.directory.write("revoked.json", b"{}")
        self.assertRaises(StateError, Revocations, self.clock, self.directory, self.records)
        self.directory.remove("revoked.json")
        (self.directory.path / "revoked.json").mkdir()
        self.assertRaises(StateError, Revocations, self.clock, self.directory, self.records)

    def no_room(self) -> None:
        """Make writes fail as on a full disk, unless space is freed for them."""
        full = OSError(errno.ENOSPC, "full")
        replace = os.replace

        def write(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            if (self.directory.path / RESERVE).exists() or self.freed:
                raise full
            self.freed = True
            replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        self.freed = not (self.directory.path / RESERVE).exists()
        self.patch(os, "replace", write)
        self.patch(os, "posix_fallocate", mock.Mock(side_effect=full))

    def test_full_disk(self) -> None:
        """A node is revoked in the space that the server has reserved, and the reply says so."""
        self.no_room()
        sentence = self.revoke()
        self.assertTrue(sentence.startswith("node edge-1 is revoked; the disk of "), sentence)
        self.assertIn("free space now", sentence)
        self.clock.advance(0.5)
        self.assertEqual(self.revoked, ["edge-1"])
        error = self.assertRaises(StateError, self.revoke, "edge-2")
        self.assertTrue(error.disk_is_full)

    def test_space_is_reserved_again(self) -> None:
        """The reserve is restored once there is space; readiness reports if there is none."""
        self.assertIsNone(self.revocations.warning)
        self.directory.use_reserve()
        with mock.patch("os.posix_fallocate", side_effect=OSError(errno.ENOSPC, "full")):
            self.clock.pump([1] * 30)
            self.assertIn(
                "no disk space is reserved for revocations: ", self.revocations.warning or ""
            )
            later = Revocations(self.clock, self.directory, self.records)
            self.assertIsNotNone(later.warning)
        self.clock.advance(RESERVE_INTERVAL + 1)
        self.assertIsNone(self.revocations.warning)
        self.assertTrue((self.directory.path / RESERVE).exists())

    def test_without_reserved_space(self) -> None:
        """Without a reserve, a full disk is an error, and nothing is partially written."""
        self.directory.use_reserve()
        self.no_room()
        self.assertTrue(self.assertRaises(StateError, self.revoke).disk_is_full)
        self.assertIsNone(self.directory.read("revoked.json"))

    def test_locked(self) -> None:
        """Two concurrent commands do not overwrite each other."""
        with self.directory.lock():
            error = self.assertRaises(StateError, self.revoke)
        self.assertIn("try again", str(error))

    def test_stopped(self) -> None:
        """A stopped service no longer checks the file."""
        self.revocations.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class RecordTests(TestCase):
    """The server's records of nodes."""

    def test_round_trip(self) -> None:
        """A record survives a restart."""
        directory = state_directory(self)
        record = NodeRecord("edge-1", EDGE_1, "ab", ("one", "two"), utc_now(clock_now()))
        NodeRecords(directory).put(record)
        self.assertEqual(NodeRecords(directory).get("edge-1"), record)

    def test_claims(self) -> None:
        """Nodes are found by names and addresses in the latest records, also after a restart."""
        directory = state_directory(self)
        records = NodeRecords(directory)
        now = utc_now(clock_now())
        for node, text in (
            ("edge-1", "host=camera&ipv4=192.0.2.7&ipv4=127.0.0.1"),
            ("edge-2", "host=camera&ipv4=127.0.0.1"),
            ("edge-1", "host=door"),
        ):
            records.put(NodeRecord(node, parse_identifiers(text), "ab", ("key",), now))
        for known in (records, NodeRecords(directory)):
            for claims, expected in (
                (["edge-1"], ["edge-1"]),
                (["camera", "door"], ["edge-1", "edge-2"]),
                (["camera"], ["edge-2"]),
                (["192.0.2.7", "127.0.0.1", "edge-3"], []),
            ):
                self.assertEqual([r.node for r in known.with_any(claims)], expected)

    def test_identifiers_that_are_none(self) -> None:
        """Invalid identifiers, and nodes with invalid names, are ignored; others remain."""
        directory = state_directory(self)
        nodes = directory.subdirectory("nodes")
        now = utc_now(clock_now())
        NodeRecords(directory).put(NodeRecord("edge-1", EDGE_1, "ab", ("one",), now))
        good = nodes.read("edge-1") or b""
        for item in (b"host=localhost", b"host=x.localhost", b"host=10.1", b"cidr=10.0.0.5/8"):
            nodes.write("edge-1", good.replace(b"ipv4", item + b"&ipv4"))
            for name in ("localhost", "10.1", "Edge"):
                nodes.write(name, good.replace(b"edge-1", name.encode()))
            records = NodeRecords(directory)
            record = records.get("edge-1")
            assert record is not None
            self.assertEqual(record.identifiers, EDGE_1, item)
            self.assertEqual([r.node for r in records.with_any(["localhost", "10.1", "Edge"])], [])

    def test_broken(self) -> None:
        """A broken record is an error, because the name would otherwise be free."""
        directory = state_directory(self)
        nodes = directory.subdirectory("nodes")
        now = utc_now(clock_now())
        NodeRecords(directory).put(NodeRecord("edge-1", EDGE_1, "ab", ("one",), now))
        good = nodes.read("edge-1") or b""
        for name, content in (
            ("edge-1", b""),
            ("edge-1", b"[]"),
            ("edge-2", good),
        ):
            for former in nodes.names():
                nodes.remove(former)
            nodes.write(name, content)
            error = self.assertRaises(StateError, NodeRecords, directory)
            self.assertIn(f"nodes/{name} is not a node's record", str(error))
