"""Data about the process."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.diagnose.process import process_part

BYTE_ORDER = sys.byteorder


class ProcessTests(SynchronousTestCase):
    """The running process, in a fake /proc and in the real one."""

    # 127.0.0.1:10265 and [::1]:10266 in the format of x86; the last TCP entry is no listener.
    REST = "00000000:00000000 00:00000000 00000000 0 0"
    TCP = (
        "sl local_address rem_address st and so on\n"
        f"0: 0100007F:2819 00000000:0000 0A {REST} 4711 1 0\n"
        f"1: 0100007F:281B 0100007F:9C40 01 {REST} 4712 1 0\n"
    )
    TCP6 = f"sl\n0: {'0' * 24}01000000:281A {'0' * 32}:0000 0A {REST} 4713 1 0\n"

    def setUp(self):
        """Create a /proc with one process."""
        self.patch(sys, "byteorder", "little")
        self.proc = Path(self.mktemp())
        (self.proc / "net").mkdir(parents=True)
        (self.proc / "net" / "tcp").write_text(self.TCP)
        (self.proc / "net" / "tcp6").write_text(self.TCP6)
        self.add(1, {})
        self.add(42, {0: "/dev/null", 3: "socket:[4711]", 4: "socket:[4713]", 5: "pipe:[9]"})

    def add(self, pid, descriptors):
        """Add a process."""
        directory = self.proc / str(pid)
        (directory / "fd").mkdir(parents=True)
        for number, target in descriptors.items():
            (directory / "fd" / str(number)).symlink_to(target)
        (directory / "cmdline").write_text("twist\0yurttunnel-agent\0--join-token\0hunter2\0")
        (directory / "status").write_text("Name:\ttwist\nState:\tS (sleeping)\n")
        (directory / "limits").write_text(
            "Max open files            8                 16   files\n"
        )

    def find(self, host="127.0.0.1", port=10265):
        """Find the process."""
        return process_part("yurttunnel-agent", host, port, ("--join-token",), self.proc)

    def test_found(self):
        """The process is found by its socket of either family, and described without secrets."""
        for part in (self.find(), self.find("::1", 10266)):
            self.assertEqual((), part.findings)
            self.assertIn("pid: 42\n", part.text)
            self.assertIn("descriptors: 4 of 8\n  file: 1\n  pipe: 1\n  socket: 2\n", part.text)
            self.assertNotIn("hunter2", part.text)

    def test_not_there(self):
        """Without a listener there is no process to describe."""
        for host, port in (("127.0.0.1", 10267), ("127.0.0.2", 10265), ("::1", 10265)):
            self.assertIn("no socket of this machine", self.find(host, port).text)

    def test_of_another_user(self):
        """If its descriptors are unreadable, the message says what to do."""
        for name in (self.proc / "42" / "fd").iterdir():
            name.unlink()
        self.assertIn("as its user or root", self.find().findings[0])

    def test_descriptors(self):
        """Descriptors near their limit are a finding."""
        for number in range(6, 9):
            (self.proc / "42" / "fd" / str(number)).symlink_to("/dev/null")
        self.assertIn("7 of 8 descriptors", self.find().findings[0])

    def test_stopped(self):
        """A stopped process is a finding."""
        (self.proc / "42" / "status").write_text("State:\tT (stopped)\n")
        self.assertIn("SIGSTOP", self.find().findings[0])

    def test_real(self):
        """In the real /proc this process is found by its own socket."""
        self.patch(sys, "byteorder", BYTE_ORDER)
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                listener = socket.create_server((host, 0), family=family)
            except OSError:
                continue  # A machine without IPv6.
            with listener:
                part = process_part("p", host, listener.getsockname()[1], ())
            self.assertIn(f"pid: {os.getpid()}\n", part.text)
            self.assertRegex(part.text, r"descriptors: \d+ of \d+\n")
            self.assertIn("State:", part.text)
