"""The command, and how it combines the parts of the bundle."""

from __future__ import annotations

import io
import os
import socket
import stat
import tarfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.ops.diagnose.samples import JOIN_TOKEN, KEY_PEM
from yurttunnel.ops.diagnose import bundle, command
from yurttunnel.ops.diagnose.bundle import Part
from yurttunnel.ops.diagnose.command import diagnose
from yurttunnel.ops.diagnose.subject import Subject


class CommandTests(SynchronousTestCase):
    """The bundle, the summary and the exit status."""

    def setUp(self):
        """Replace the collectors."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.output = self.directory / "bundle.tar.gz"
        self.found = [Part("versions", "python\n")]
        self.patch(command, "_collect", lambda subject: self.found)
        self.screen = io.StringIO()

    def run_it(self, output=None, **changes):
        """Run the diagnosis; return the exit status."""
        subject = Subject("yurttunnel-server", "127.0.0.1", 1, (), (), **changes)
        return diagnose(subject, output or self.output, self.screen)

    def content(self):
        """Return the files in the bundle by name."""
        with tarfile.open(self.output) as archive:
            return {
                Path(member.name).name: archive.extractfile(member).read().decode()
                for member in archive
            }

    def test_no_findings(self):
        """Without findings the status is 0; only its owner can read the bundle."""
        self.assertEqual(0, self.run_it())
        self.assertIn(str(self.output.absolute()), self.screen.getvalue())
        self.assertIn("nothing looks wrong", self.screen.getvalue())
        self.assertEqual(0o600, stat.S_IMODE(self.output.stat().st_mode))
        self.assertEqual({"summary.txt": "nothing\n", "versions.txt": "python\n"}, self.content())

    def test_findings(self):
        """Findings are printed as sentences, and the status is 1."""
        self.found = [Part("a", "", ("A is wrong.",)), Part("b", "", ("B is\nwrong.",))]
        self.assertEqual(1, self.run_it())
        self.assertTrue(self.screen.getvalue().endswith("- A is wrong.\n- B is wrong.\n"))
        self.assertIn("A is wrong.", self.content()["summary.txt"])

    def test_one_screen(self):
        """The number and length of the summary's lines are limited; the bundle has everything."""
        self.found = [Part("a", "", tuple(f"{number} {'x' * 5000}" for number in range(99)))]
        self.run_it()
        lines = self.screen.getvalue().splitlines()
        self.assertLess(len(lines), 24)
        self.assertLess(max(map(len, lines)), 500)
        self.assertIn("84 more", lines[-1])
        self.assertEqual(99, self.content()["summary.txt"].count("\n"))

    def test_secrets(self):
        """Neither the summary nor the bundle contains secrets."""
        text = f"hunter2 {JOIN_TOKEN} Bearer opaque {KEY_PEM}"
        self.found = [Part("a", text, (text,))]
        self.run_it(secrets=("hunter2", ""))
        shown = self.screen.getvalue() + "".join(self.content().values())
        for secret in ("hunter2", "1b" * 16, "opaque", KEY_PEM.splitlines()[1]):
            self.assertNotIn(secret, shown)

    def test_existing_file(self):
        """An existing file, or a link, is not written to; the flag is named."""
        self.output.write_text("precious")
        error = self.assertRaises(command.BundleNotWritten, self.run_it)
        sentence = f"--output: {self.output}: File exists: name another file"
        self.assertEqual(sentence, str(error))
        self.assertEqual("", self.screen.getvalue())
        self.assertEqual("precious", self.output.read_text())
        link = self.directory / "link.tar.gz"
        link.symlink_to(self.directory / "elsewhere")
        self.assertRaises(command.BundleNotWritten, self.run_it, link)
        self.assertFalse((self.directory / "elsewhere").exists())

    def test_directory_of_another_user(self):
        """Root may write into the directory of another user only if that is the caller of sudo."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a directory away")
        os.chown(self.directory, 12345, 12345)
        for environment in ({}, {"SUDO_UID": "54321"}, {"SUDO_UID": "x"}):
            self.patch(os, "environ", environment)
            with self.assertRaisesRegex(command.BundleNotWritten, "belongs to another user"):
                self.run_it()
        self.patch(os, "environ", {"SUDO_UID": "12345"})
        self.assertEqual(0, self.run_it())
        self.assertEqual(0, self.output.stat().st_uid)

    def test_failure(self):
        """If the bundle cannot be written completely, it is removed."""

        def fail(*arguments):
            raise OSError(28, "No space left on device")

        self.patch(bundle, "redact", fail)
        with self.assertRaisesRegex(command.BundleNotWritten, "No space left on device"):
            self.run_it()
        self.assertFalse(self.output.exists())

    def test_default_name(self):
        """Without a name the file is in the working directory, with program and time."""
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.directory)
        subject = Subject("yurttunnel-server", "127.0.0.1", 1, (), ())
        diagnose(subject, None, self.screen)
        [name] = os.listdir()
        self.assertRegex(name, r"^yurttunnel-server-diagnosis-\d{8}T\d{6}Z\.tar\.gz$")


class CollectTests(SynchronousTestCase):
    """All parts together."""

    def collect(self, host="127.0.0.1"):
        """Collect for a process that does not run; return the parts by name."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        subject = Subject("yurttunnel-agent", host, port, (Path(self.mktemp()),), ())
        return {part.name: part for part in command._collect(subject)}

    def test_parts(self):
        """All parts exist even if the process does not run."""
        parts = self.collect()
        self.assertLess(
            {"command-line", "versions", "machine", "files", "process", "pages/metrics"},
            parts.keys(),
        )
        self.assertNotIn("firewall", parts)

    def test_unspecified_address(self):
        """A port on the unspecified address is requested on loopback."""
        for host in ("0.0.0.0", "127.0.0.1"):
            self.assertIn("127.0.0.1:", self.collect(host)["pages/healthz"].findings[0])

    def test_defect(self):
        """A failing part is reported, and does not affect the others."""
        self.patch(command, "machine_part", lambda: 1 / 0)
        parts = self.collect()
        self.assertIn("ZeroDivisionError", parts["machine-error"].text)
        self.assertIn("ZeroDivisionError", parts["machine-error"].findings[0])
        self.assertIn("files", parts)
