"""Log files: their form, their bound, and who is told of what is added."""

from __future__ import annotations

from pathlib import Path

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from yurtlab.node.logs import MAX_PIECE_BYTES, ContainerLog, stamp

SECOND = 1_000_000_000


class ContainerLogTests(SynchronousTestCase):
    """What is in the files."""

    def setUp(self):
        """Make a log whose time is set by hand."""
        self.time = 0
        self.path = Path(self.mktemp()) / "main" / "0.log"
        self.log = self.make(max_bytes=100)

    def make(self, max_bytes):
        """Make a log."""
        log = ContainerLog(self.path, max_bytes=max_bytes, now=lambda: self.time)
        self.addCleanup(log.close)
        return log

    def test_stamp(self):
        """Times always have nine digits behind the second."""
        self.assertEqual(stamp(0), b"1970-01-01T00:00:00.000000000Z")
        self.assertEqual(stamp(1_700_000_000 * SECOND + 5), b"2023-11-14T22:13:20.000000005Z")

    def test_lines(self):
        """Each line has its time, which is that of its end, its stream and its tag."""
        log = self.make(max_bytes=1000)
        log.write("stdout", b"one\n\ntwo\nthr")
        self.time = 7
        log.write("stderr", b"error\n")
        log.write("stdout", b"ee\n")
        self.assertEqual(
            self.path.read_bytes().splitlines(),
            [
                b"1970-01-01T00:00:00.000000000Z stdout F one",
                b"1970-01-01T00:00:00.000000000Z stdout F ",
                b"1970-01-01T00:00:00.000000000Z stdout F two",
                b"1970-01-01T00:00:00.000000007Z stderr F error",
                b"1970-01-01T00:00:00.000000007Z stdout F three",
            ],
        )

    def test_unfinished_at_the_end(self):
        """What has no end when the process ends is a piece of a line."""
        self.log.write("stdout", b"thr")
        self.assertEqual(self.path.read_bytes(), b"")
        self.log.close()
        self.assertEqual(self.path.read_bytes(), b"1970-01-01T00:00:00.000000000Z stdout P thr\n")

    def test_long_line(self):
        """A long line does not wait for its end: it is written in pieces."""
        log = self.make(max_bytes=100_000)
        log.write("stdout", b"x" * (MAX_PIECE_BYTES - 1))
        self.assertEqual(self.path.read_bytes(), b"")
        log.write("stdout", b"yz")
        log.write("stdout", b"end\n")
        tags_and_texts = [line[38:] for line in self.path.read_bytes().splitlines()]
        self.assertEqual(tags_and_texts, [b"P " + b"x" * (MAX_PIECE_BYTES - 1) + b"yz", b"F end"])

    def test_bound(self):
        """Above the bound a file is put aside, and there are never more than two."""
        for number in range(20):
            self.log.write("stdout", b"%02d " % number + b"x" * 50 + b"\n")
        files = sorted(self.path.parent.iterdir())
        self.assertEqual(files, sorted(segment.path for segment in self.log.segments))
        self.assertEqual(len(files), 2)
        kept = b"".join(segment.path.read_bytes() for segment in self.log.segments)
        self.assertIn(b" F 19 ", kept)
        self.assertNotIn(b" F 15 ", kept)
        self.assertLess(len(kept), 400)

    def test_told(self):
        """Readers are told of each addition and of the end, until they have enough."""
        told = []
        stop = self.log.on_change(lambda: told.append("one"))
        self.log.on_change(lambda: told.append("other"))
        self.log.write("stdout", b"a\n")
        stop()
        stop()
        self.log.close()
        self.log.close()
        self.assertEqual(told, ["one", "other", "other"])
        self.assertTrue(self.log.ended)

    def test_after_the_end(self):
        """What comes after the end is dropped."""
        self.log.close()
        self.log.write("stdout", b"late\n")
        self.assertEqual(self.path.read_bytes(), b"")

    def test_removed(self):
        """Removing it leaves no file."""
        for _ in range(5):
            self.log.write("stdout", b"x" * 90 + b"\n")
        self.log.remove()
        self.assertEqual(list(self.path.parent.iterdir()), [])

    def test_full_disk(self):
        """A log that cannot be written says so once and lets the process go on."""
        with open("/dev/full", "wb", buffering=0) as full:
            self.log._file.close()
            self.log._file = full
            with capturedLogs() as events:
                self.log.write("stdout", b"a\n")
                self.log.write("stdout", b"b\n")
        self.assertEqual([event["error"] for event in events], ["No space left on device"])
