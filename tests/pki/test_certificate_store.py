"""Stored certificates in a cluster."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing import issue
from tests.pki.support import Issuer
from yurttunnel.pki.certificate_store import (
    MAX_FILES,
    DatedStore,
    open_certificate_directory,
)
from yurttunnel.pki.certificate_template import (
    proxy_client_template,
    serving_template,
)
from yurttunnel.pki.credentials import certificates_from_pem
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.issuer import IssuedCertificate

SERVING = serving_template(["tunnel.example"])
PREFIX = "yurttunnel-server"
CURRENT = f"{PREFIX}-current.pem"


class StoreTests(SynchronousTestCase):
    """The layout of yurttunnel 1.2."""

    def setUp(self):
        """Create a store."""
        self.path = Path(self.mktemp())
        self.clock = Clock()
        self.clock.advance(1_700_000_000)
        self.directory = open_certificate_directory(self.path)
        self.store = DatedStore(self.clock, self.directory, PREFIX)
        self.issuer = Issuer.make(self)

    def issue(self, template=SERVING):
        """Issue a certificate with a chain."""
        issued = issue(self.issuer, template)
        chain = (self.issuer.authority.certificate,)
        return IssuedCertificate(issued.key, issued.certificate, chain)

    def loaded(self, store=None):
        """Load the certificate with a new store."""
        issued = (store or DatedStore(self.clock, self.directory, PREFIX)).load()
        return None if issued is None else issued.certificate

    def refuses(self, words):
        """Assert that nothing is loaded, with the reason in one line."""
        self.assertIn(words, str(self.assertRaises(StateError, self.store.load)))

    def test_the_link_lasts(self):
        """After saving, the directory with the link has been synced to disk."""
        links = []
        fsync = os.fsync

        def note(descriptor):
            links.append(os.path.lexists(self.path / CURRENT))
            fsync(descriptor)

        self.patch(os, "fsync", note)
        self.store.save(self.issue())
        self.assertTrue(links[-1])

    def test_layout(self):
        """A dated file has the chain and the key, is closed to others, and is linked to."""
        issued = self.issue()
        self.store.save(issued)
        name = f"{PREFIX}-2023-11-14-22-13-20.pem"
        self.assertEqual(sorted(os.listdir(self.path)), [name, CURRENT])
        self.assertEqual(os.readlink(self.path / CURRENT), name)
        self.assertEqual((self.path / name).stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o700)
        content = (self.path / CURRENT).read_bytes()
        begin = content.index(b"-----BEGIN EC PRIVATE KEY-----")
        self.assertEqual(
            certificates_from_pem(content[:begin]), (issued.certificate, *issued.chain)
        )
        key = load_pem_private_key(content[begin:], None)
        self.assertEqual(key.public_key(), issued.certificate.public_key())

    def test_load(self):
        """A saved certificate is loaded."""
        self.assertIsNone(self.store.load())
        issued = self.issue()
        self.store.save(issued)
        loaded = self.store.load()
        self.assertEqual(loaded.certificate, issued.certificate)
        self.assertEqual(loaded.chain, issued.chain)
        self.assertEqual(loaded.key.public_key(), issued.key.public_key())

    def test_other_prefix(self):
        """Two certificates in a directory are independent, even if one prefix begins the other."""
        other = DatedStore(self.clock, self.directory, f"{PREFIX}-proxy-client")
        one, two = self.issue(), self.issue(proxy_client_template())
        self.store.save(one)
        other.save(two)
        for _ in range(MAX_FILES + 2):
            self.clock.advance(1)
            self.store.save(one)
        self.assertEqual(self.loaded(), one.certificate)
        self.assertEqual(self.loaded(other), two.certificate)

    def test_pruned(self):
        """Only the newest files are kept, and foreign ones are not changed."""
        foreign = self.path / f"{PREFIX}-notes.pem"
        foreign.write_text("x")
        for _ in range(MAX_FILES + 3):
            self.clock.advance(60)
            issued = self.issue()
            self.store.save(issued)
        dated = [name for name in os.listdir(self.path) if "-2023-" in name]
        self.assertEqual(len(dated), MAX_FILES)
        self.assertIn(os.readlink(self.path / CURRENT), dated)
        self.assertEqual(self.loaded(), issued.certificate)
        self.assertTrue(foreign.exists())

    def test_clock_set_back(self):
        """The current file is kept even if it is the oldest by the clock."""
        for _ in range(MAX_FILES):
            self.clock.advance(60)
            self.store.save(self.issue())
        self.clock.rightNow -= 86400
        issued = self.issue()
        self.store.save(issued)
        self.assertEqual(self.loaded(), issued.certificate)

    def test_absolute_link(self):
        """Absolute links of yurttunnel 1.2, from another path of the directory, are loaded."""
        issued = self.issue()
        self.store.save(issued)
        name = os.readlink(self.path / CURRENT)
        os.unlink(self.path / CURRENT)
        os.symlink(f"/var/lib/elsewhere/pki/{name}", self.path / CURRENT)
        self.assertEqual(self.loaded(), issued.certificate)

    def test_plain_file(self):
        """A copy of the directory without links is loaded."""
        issued = self.issue()
        self.store.save(issued)
        os.replace(self.path / os.readlink(self.path / CURRENT), self.path / CURRENT)
        self.assertEqual(self.loaded(), issued.certificate)

    def test_died_while_switching(self):
        """A link that was not renamed becomes the current one if there is none."""
        issued = self.issue()
        self.store.save(issued)
        os.rename(self.path / CURRENT, self.path / f"{PREFIX}-updated.pem")
        self.assertEqual(self.loaded(), issued.certificate)
        self.assertEqual(len(os.listdir(self.path)), 2)

    def test_leftover_link(self):
        """A leftover new link beside a current one does no harm."""
        os.symlink("gone.pem", self.path / f"{PREFIX}-updated.pem")
        issued = self.issue()
        self.store.save(issued)
        self.assertEqual(self.loaded(), issued.certificate)
        self.assertNotIn(f"{PREFIX}-updated.pem", os.listdir(self.path))

    def test_corrupt(self):
        """A file that is broken, foreign or open to others is not loaded, and that is logged."""
        self.store.save(self.issue())
        path = self.path / os.readlink(self.path / CURRENT)
        whole = path.read_bytes()
        key = whole.index(b"-----BEGIN EC")
        other = self.issue()
        other_store = DatedStore(self.clock, self.directory, "other")
        other_store.save(other)
        other_whole = (self.path / "other-current.pem").read_bytes()
        other_key = other_whole[other_whole.index(b"-----BEGIN EC") :]
        for content, words in (
            (b"", "contains no certificate"),
            (os.urandom(4096), "contains no certificate"),
            (whole[: len(whole) // 3], "no"),
            (whole[:key], "contains no private key"),
            (whole[key:], "contains no certificate"),
            (whole[:key] + other_key, "does not belong"),
            (whole[: key + 60] + b"\n-----END EC PRIVATE KEY-----\n", "private key"),
            (whole.replace(b"M", b"N", 3), "it"),
        ):
            path.write_bytes(content)
            self.refuses(words)
        path.write_bytes(whole)
        path.chmod(0o644)
        self.refuses("chmod 0600")
        path.chmod(0o600)
        path.unlink()
        self.refuses("which does not exist")
        path.mkdir()
        self.refuses("is a directory")

    def test_link_to_a_link(self):
        """Only regular files of the directory are read, whatever a link refers to."""
        issued = self.issue()
        self.store.save(issued)
        outside = Path(self.mktemp())
        os.rename(self.path / os.readlink(self.path / CURRENT), outside)
        os.symlink(outside.absolute(), self.path / os.readlink(self.path / CURRENT))
        self.refuses("symbolic link")

    def test_full_disk(self):
        """A full disk is reported as such, and the old certificate stays."""
        first = self.issue()
        self.store.save(first)
        self.clock.advance(1)

        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch(os, "fsync", full)
        error = self.assertRaises(StateError, self.store.save, self.issue())
        self.assertIn("disk is full", str(error))
        self.assertEqual(self.loaded(), first.certificate)
        self.assertEqual(len(os.listdir(self.path)), 2)

    def test_link_not_made(self):
        """A link that cannot be created is reported, and the old one stays."""
        first = self.issue()
        self.store.save(first)
        self.clock.advance(1)

        def read_only(*_):
            raise OSError(errno.EROFS, "Read-only file system")

        self.patch(os, "symlink", read_only)
        error = self.assertRaises(StateError, self.store.save, self.issue())
        self.assertIn("read-only file system", str(error))
        self.assertEqual(self.loaded(), first.certificate)

    def test_link_never_made(self):
        """Without links, failed attempts leave no files and remove none in use.

        For example, a file that is mounted in the place of the link cannot be replaced.
        """
        (self.path / CURRENT).mkdir(parents=True)
        for _ in range(3):
            self.clock.advance(60)
            self.assertRaises(StateError, self.store.save, self.issue())
        self.assertEqual([CURRENT], self.directory.names())

    def test_link_is_not_recreated(self):
        """A rewritten file to which the current link refers is not removed."""
        self.store.save(self.issue())

        def read_only(*_):
            raise OSError(errno.EROFS, "Read-only file system")

        self.patch(os, "symlink", read_only)
        second = self.issue()
        self.assertRaises(StateError, self.store.save, second)
        self.assertEqual(self.loaded(), second.certificate)


class DirectoryTests(SynchronousTestCase):
    """Ownership and mode of the directory."""

    def test_of_version_1_2(self):
        """A directory that others can list is made private, and used."""
        path = Path(self.mktemp())
        path.mkdir(mode=0o755)
        (path / "yurttunnel-server-current.pem").write_text("x")
        open_certificate_directory(path)
        self.assertEqual(path.stat().st_mode & 0o777, 0o700)

    def test_link(self):
        """The target of a link is not changed and not used."""
        there = Path(self.mktemp()).absolute()
        there.mkdir(mode=0o755)
        path = Path(self.mktemp())
        path.symlink_to(there)
        error = self.assertRaises(StateError, open_certificate_directory, path)
        self.assertIn("is a symbolic link: name the directory that it leads to", str(error))
        self.assertEqual(there.stat().st_mode & 0o777, 0o755)

    def test_open_to_writers(self):
        """A directory in which others may have written files is rejected."""
        path = Path(self.mktemp())
        path.mkdir()
        (path / "yurttunnel-server-current.pem").write_text("x")
        path.chmod(0o777)
        error = self.assertRaises(StateError, open_certificate_directory, path)
        self.assertIn("chmod 0700", str(error))

    def test_not_a_directory(self):
        """A path that cannot be a directory does not prevent the start."""
        path = Path(self.mktemp())
        path.write_text("x")
        directory = open_certificate_directory(path / "pki")
        store = DatedStore(Clock(), directory, PREFIX)
        self.assertRaises(StateError, store.load)
        issued = issue(Issuer.make(self), SERVING)
        self.assertRaises(StateError, store.save, issued)

    def test_read_only(self):
        """On a read-only file system, existing certificates are read."""
        path = Path(self.mktemp())
        issuer = Issuer.make(self)
        issued = issue(issuer, SERVING)
        DatedStore(issuer.clock, open_certificate_directory(path), PREFIX).save(issued)

        def read_only(path, mode, *, dir_fd):
            raise OSError(errno.EROFS, "Read-only file system")

        self.patch(os, "access", read_only)
        directory = open_certificate_directory(path)
        self.assertIsInstance(directory, StateDirectory)
        loaded = DatedStore(issuer.clock, directory, PREFIX).load()
        self.assertEqual(loaded.certificate, issued.certificate)
