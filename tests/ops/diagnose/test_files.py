"""The listing of files, and the findings about them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.diagnose.samples import DAY, JOIN_TOKEN, KEY_PEM, NOW, certificate
from yurttunnel.ops.diagnose import files
from yurttunnel.ops.diagnose.files import files_part


class FileTests(SynchronousTestCase):
    """The text and the findings about files."""

    def setUp(self):
        """Make a directory."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()

    def write(self, name, content, mode=0o600):
        """Make a file."""
        path = self.directory / name
        path.write_text(content)
        path.chmod(mode)
        return path

    def collect(self, *further):
        """Collect the directory."""
        return files_part([self.directory], further, NOW)

    def test_good(self):
        """Files are listed with modes, certificates with their expiry; there is no finding."""
        self.write("node.pem", certificate(NOW - DAY, NOW + 29 * DAY) + KEY_PEM)
        self.write("ca.crt", certificate(NOW - DAY, NOW + 3650 * DAY), 0o644)
        os.utime(self.directory / "node.pem", (0, 90061))
        part = self.collect()
        self.assertEqual((), part.findings)
        self.assertRegex(
            part.text,
            r"-rw------- .* 1970-01-02T01:01:01Z \S+node\.pem\n    certificate: CN=edge-1\n",
        )
        self.assertIn("to 2026-12-21 00:00:00+00:00", part.text)

    def test_no_content(self):
        """The text contains no part of a key."""
        self.write("both.pem", certificate(NOW, NOW + DAY) + KEY_PEM)
        self.write("only.key", KEY_PEM)
        self.write("join-token", JOIN_TOKEN)
        text = self.collect().text
        for secret in (*KEY_PEM.splitlines()[1:3], JOIN_TOKEN, JOIN_TOKEN[:16]):
            self.assertNotIn(secret, text)

    def test_ends(self):
        """Certificates that have expired, expire soon, or are not yet valid are findings."""
        for begin, end, sentence in (
            (-30 * DAY, -DAY, "has expired"),
            (-28 * DAY, 2 * DAY, "has not been renewed"),
            (-1000 * DAY, 25 * DAY, "has not been renewed"),
            (2 * DAY, 30 * DAY, "clock is behind"),
        ):
            self.write("node.pem", certificate(NOW + begin, NOW + end))
            [finding] = self.collect().findings
            self.assertIn(sentence, finding)
            self.assertIn("node.pem", finding)

    def test_earlier_certificates(self):
        """An expired certificate is no finding if a link points to a newer one."""
        name = "yurttunnel-agent-2026-01-01-00-00-00.pem"
        self.write(name, certificate(NOW - 30 * DAY, NOW - DAY))
        newer = self.write(name.replace("01-01", "11-01"), certificate(NOW - DAY, NOW + 29 * DAY))
        link = self.directory / "yurttunnel-agent-current.pem"
        link.symlink_to(newer.name)
        self.assertEqual((), self.collect().findings)
        self.assertIn(f"current.pem -> {newer.name}", self.collect().text)
        link.unlink()
        link.symlink_to(name)
        self.assertEqual(1, len(self.collect().findings))

    def test_open_to_others(self):
        """Keys and tokens that others can read are findings, certificates are not."""
        self.write("a.key", KEY_PEM, 0o640)
        self.write("join-token", JOIN_TOKEN, 0o604)
        self.write("ca.crt", certificate(NOW - DAY, NOW + 29 * DAY), 0o644)
        findings = self.collect().findings
        self.assertEqual(2, len(findings))
        self.assertIn("a.key holds a secret and is open to other users", findings[0])

    def test_secrets_of_a_kubeconfig(self):
        """A token or key in a kubeconfig is a secret in any YAML style; a path is not."""
        for content in (
            "user: {token: opaque}",
            "    token: opaque\n",
            '{"token": "opaque"}',
            "    client-key-data: TFMwdExT\n",
            "    client-key-data: |\n      TFMwdExT\n",
        ):
            self.write("kubelet.conf", content, 0o644)
            [finding] = self.collect().findings
            self.assertIn("kubelet.conf holds a secret", finding)
        self.write("kubelet.conf", "tokenFile: /t\nclient-key: /k\ntoken: ''\n", 0o644)
        self.assertEqual((), self.collect().findings)

    def test_links_of_flags(self):
        """Links of flags are followed to their target, over any number of links."""
        target = Path(self.mktemp())
        target.write_text(certificate(NOW - 30 * DAY, NOW - DAY) + KEY_PEM)
        target.chmod(0o644)
        first, second = self.directory / "first", Path(self.mktemp())
        first.symlink_to(target.absolute())
        second.symlink_to(first.absolute())
        self.assertEqual((), self.collect().findings)
        part = self.collect(second)
        self.assertIn(f"{second} -> {first.absolute()}", part.text)
        for sentence in ("open to other users", "has expired"):
            self.assertIn(sentence, " ".join(part.findings))
        loop = Path(self.mktemp())
        loop.symlink_to(loop.name)
        self.assertEqual((), self.collect(loop).findings)

    def test_missing(self):
        """A missing file is reported, but is no finding: the program may be new."""
        part = files_part([self.directory / "none"], [self.directory / "kubelet.conf"], NOW)
        self.assertEqual((), part.findings)
        self.assertEqual(2, part.text.count("No such file"))

    def test_no_directory(self):
        """A file or a device in place of a directory is a finding."""
        file = self.write("file", "")
        part = files_part([file, Path("/dev/null")], (), NOW)
        sentences = (f"{file} is not a directory.", "/dev/null is not a directory.")
        self.assertEqual(sentences, part.findings)

    def test_unreadable_directories(self):
        """An unreadable directory is a finding, because its content is not checked."""
        scandir, inner = os.scandir, str(self.directory / "inner")
        os.mkdir(inner)

        def refuse(path):
            if str(path) in refused:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return scandir(path)

        self.patch(os, "scandir", refuse)
        for refused in ([str(self.directory)], [inner]):
            part = self.collect()
            self.assertEqual(
                (f"{refused[0]} could not be read (Permission denied).",), part.findings
            )
            self.assertIn(f"{refused[0]}: Permission denied\n", part.text)

    def test_odd_files(self):
        """Pipes, links and large files are not read; broken certificates are reported."""
        os.mkfifo(self.directory / "pipe")
        (self.directory / "loop").symlink_to("loop")
        self.write("large.pem", certificate(NOW, NOW) + "x" * 2**20)
        self.write("bad.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        part = self.collect()
        self.assertEqual((), part.findings)
        self.assertIn("it cannot be read", part.text)
        self.assertNotIn("edge-1", part.text)

    def test_many(self):
        """The number of listed files is limited."""
        self.patch(files, "MAX_FILES", 3)
        for number in range(5):
            self.write(f"{number}", "")
        self.assertEqual(4, self.collect().text.count("\n"))

    def test_disk(self):
        """A disk with less than 64 MiB of free space is a finding."""
        for free, found in (((64 << 20) - 4096, True), (64 << 20, False)):
            usage = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096)
            self.patch(files.os, "statvfs", lambda path, usage=usage: usage)
            disk_findings = [each for each in self.collect().findings if "MiB are free" in each]
            self.assertEqual(found, bool(disk_findings), free)
