"""Log files: format, maximum size, and notification of readers."""

from __future__ import annotations

from pathlib import Path

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from yurtlab.node.logs import MAX_PIECE_BYTES, ContainerLog, stamp

SECOND = 1_000_000_000


class ContainerLogTests(SynchronousTestCase):
    """The content of the files."""

    def setUp(self):
        """Create a log with a simulated clock."""
        self.time = 0
        self.path = Path(self.mktemp()) / "main" / "0.log"
        self.log = self.make(max_bytes=100)

    def make(self, max_bytes):
        """Make a log."""
        log = ContainerLog(self.path, max_bytes=max_bytes, now=lambda: self.time)
        self.addCleanup(log.close)
        return log

    def test_stamp(self):
        """Times always have nine decimals."""
        self.assertEqual(stamp(0), b"1970-01-01T00:00:00.000000000Z")
        self.assertEqual(stamp(1_700_000_000 * SECOND + 5), b"2023-11-14T22:13:20.000000005Z")

    def test_lines(self):
        """Each line has the time of its end, its stream and its tag."""
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
        """An incomplete line at the end of the process is tagged as partial."""
        self.log.write("stdout", b"thr")
        self.assertEqual(self.path.read_bytes(), b"")
        self.log.close()
        self.assertEqual(self.path.read_bytes(), b"1970-01-01T00:00:00.000000000Z stdout P thr\n")

    def test_long_line(self):
        """A long line is written in pieces before its end."""
        log = self.make(max_bytes=100_000)
        log.write("stdout", b"x" * (MAX_PIECE_BYTES - 1))
        self.assertEqual(self.path.read_bytes(), b"")
        log.write("stdout", b"yz")
        log.write("stdout", b"end\n")
        tags_and_texts = [line[38:] for line in self.path.read_bytes().splitlines()]
        self.assertEqual(tags_and_texts, [b"P " + b"x" * (MAX_PIECE_BYTES - 1) + b"yz", b"F end"])

    def test_bound(self):
        """A file above the maximum size is rotated, and there are never more than two."""
        for number in range(20):
            self.log.write("stdout", b"%02d " % number + b"x" * 50 + b"\n")
        files = sorted(self.path.parent.iterdir())
        self.assertEqual(files, sorted(segment.path for segment in self.log.segments))
        self.assertEqual(len(files), 2)
        kept = b"".join(segment.path.read_bytes() for segment in self.log.segments)
        self.assertIn(b" F 19 ", kept)
        self.assertNotIn(b" F 15 ", kept)
        self.assertLess(len(kept), 400)

    def test_notifications(self):
        """Readers are notified of each addition and of the end, until they stop."""
        notifications = []
        stop = self.log.on_change(lambda: notifications.append("one"))
        self.log.on_change(lambda: notifications.append("other"))
        self.log.write("stdout", b"a\n")
        stop()
        stop()
        self.log.close()
        self.log.close()
        self.assertEqual(notifications, ["one", "other", "other"])
        self.assertTrue(self.log.ended)

    def test_after_the_end(self):
        """Output after the end is dropped."""
        self.log.close()
        self.log.write("stdout", b"late\n")
        self.assertEqual(self.path.read_bytes(), b"")

    def test_removed(self):
        """A removed log leaves no file."""
        for _ in range(5):
            self.log.write("stdout", b"x" * 90 + b"\n")
        self.log.remove()
        self.assertEqual(list(self.path.parent.iterdir()), [])

    def test_full_disk(self):
        """A write error is logged once, and the process continues."""
        with open("/dev/full", "wb", buffering=0) as full:
            self.log._file.close()
            self.log._file = full
            with capturedLogs() as events:
                self.log.write("stdout", b"a\n")
                self.log.write("stdout", b"b\n")
        self.assertEqual([event["error"] for event in events], ["No space left on device"])
