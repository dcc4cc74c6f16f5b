"""The log's file on real pipes and terminals, with readers that read, stop and leave."""

from __future__ import annotations

import errno
import os
import pty
import select
import threading
from pathlib import Path
from typing import cast

from twisted.logger import ILogObserver, LogEvent, Logger, LogPublisher
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import log_file
from yurttunnel.ops.log_file import MAX_WAITING, LogFile
from yurttunnel.ops.log_output import LogOutput, text_line

LINE = b"x" * 999 + b"\n"
SECONDS = 30.0
"""The time limit for a thread, on a busy machine."""


class PipeTestCase(SynchronousTestCase):
    """A pipe and a log file that writes to it."""

    def setUp(self) -> None:
        """Make the pipe and the log file."""
        self.reader: int | None
        self.reader, self.writer = os.pipe()
        self.addCleanup(self.close)
        self.file = LogFile(self.writer)

    def close(self) -> None:
        """Close the pipe, which also ends a thread that is still writing."""
        if self.reader is not None:
            os.close(self.reader)
        self.finish()
        self.file.close()
        os.close(self.writer)

    def finish(self) -> None:
        """Wait until no line is queued."""
        thread = self.file._thread
        if thread is not None:
            thread.join(SECONDS)
        self.assertTrue(self.file.has_kept_up)

    def read(self, size: int) -> bytes:
        """Read exactly ``size`` bytes."""
        assert self.reader is not None
        data = b""
        while len(data) < size:
            data += os.read(self.reader, size - len(data))
        return data

    def hang_up(self) -> None:
        """Close the pipe's reading end."""
        assert self.reader is not None
        os.close(self.reader)
        self.reader = None

    def fill(self) -> int:
        """Write until both the pipe and the queue are full; return the number of bytes."""
        for number in range(3 * MAX_WAITING // len(LINE)):
            self.file.write(LINE)
            if self.file.lost:
                return number * len(LINE)
        raise AssertionError("there is room without end")


class LogFileTests(PipeTestCase):
    """``LogFile`` never blocks its caller."""

    def test_at_once(self) -> None:
        """While there is room, a line of any length is written before the call returns."""
        for line in (b"1\n", b"y" * 20_000 + b"\n"):
            self.file.write(line)
            self.assertTrue(self.file.has_kept_up)
            self.assertEqual(line, self.read(len(line)))

    def test_no_reads(self) -> None:
        """Without reading, lines are queued up to a limit; others are dropped and counted."""
        size = self.fill()
        self.assertTrue(MAX_WAITING <= size <= 2 * MAX_WAITING + 128 * 1024, size)
        self.assertIn("it is not read", self.file.problem)
        self.file.write(LINE)
        self.assertEqual(2, self.file.lost)
        self.assertFalse(self.file.has_kept_up)

    def test_read_again(self) -> None:
        """Queued lines are written in order, and later lines are written at once again."""
        lines = b"".join(b"%07d %s" % (number, LINE) for number in range(500))
        for line in lines.splitlines(keepends=True):
            self.file.write(line)
        self.assertEqual(lines, self.read(len(lines)))
        self.finish()
        self.file.write(LINE)
        self.assertEqual(LINE, self.read(len(LINE)))
        self.assertEqual(0, self.file.lost)

    def test_no_reader(self) -> None:
        """Without a reader, lines are dropped and nothing is raised."""
        self.hang_up()
        self.file.write(LINE)
        self.assertEqual((1, "Broken pipe"), (self.file.lost, self.file.problem))

    def test_the_reader_leaves(self) -> None:
        """When the reader leaves, queued lines are dropped."""
        for _ in range(200):
            self.file.write(LINE)
        self.assertEqual(0, self.file.lost)
        self.hang_up()
        self.finish()
        self.assertTrue(100 <= self.file.lost <= 200, self.file.lost)
        self.assertEqual("Broken pipe", self.file.problem)

    def test_blocking_for_others(self) -> None:
        """The given descriptor stays blocking and can be used after the log file is closed."""
        self.assertTrue(os.get_blocking(self.writer))
        own = self.file._descriptor
        self.assertNotEqual(self.writer, own)
        self.file.close()
        self.assertRaises(OSError, os.fstat, own)
        self.file.write(LINE)
        self.assertEqual(LINE, self.read(len(LINE)))

    def test_of_another_user(self) -> None:
        """A pipe that cannot be reopened blocks no caller, whether its descriptor blocks or not."""

        def refuse(path: str, flags: int) -> int:
            raise PermissionError

        self.patch(os, "open", refuse)
        for blocking in (True, False):
            self.file.close()
            self.file = LogFile(self.writer)
            os.set_blocking(self.writer, blocking)
            self.check_500_lines()

    def check_500_lines(self) -> None:
        """Write more than the pipe can hold, then read it."""
        lines = LINE * 500
        for _ in range(500):
            self.file.write(LINE)
        self.assertEqual(lines, self.read(len(lines)))
        self.finish()

    def test_close(self) -> None:
        """Closing waits for queued lines, up to a timeout."""
        self.patch(log_file, "CLOSE_TIMEOUT", 0.01)
        self.file.close()
        self.fill()
        self.file.close()
        self.assertFalse(self.file.has_kept_up)

    def test_no_threads(self) -> None:
        """Where no thread can be started, lines are dropped until there is room again."""

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        self.patch(threading.Thread, "start", start)
        size = self.fill()
        self.assertEqual("there can be no more threads", self.file.problem)
        self.read(size)
        self.file.write(LINE)
        self.assertEqual(1, self.file.lost)

    def test_a_line_cut_off_by_a_full_disk(self) -> None:
        """Only the truncated line is damaged: the next line starts on a line of its own."""
        write, room = os.write, [3]

        def write_what_fits(descriptor: int, data: bytes) -> int:
            if not room[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = write(descriptor, data[: room[0]])
            room[0] -= written
            return written

        self.patch(os, "write", write_what_fits)
        with open(self.mktemp(), "w+b", buffering=0) as file:
            log = LogFile(file.fileno())
            log.write(b"1234\n")
            log.write(b"lost\n")
            self.assertEqual((2, "No space left on device"), (log.lost, log.problem))
            for room[0] in (1, 100):
                log.write(b"5678\n")
            log.write(b"next\n")
            file.seek(0)
            self.assertEqual(b"123\n5678\nnext\n", file.read())
            self.assertEqual(3, log.lost)

    def test_file(self) -> None:
        """A shared file is written at the shared position, so that nothing is overwritten."""
        with open(self.mktemp(), "w+b", buffering=0) as file:
            file.write(b"before\n")
            LogFile(file.fileno()).write(b"line\n")
            file.write(b"behind\n")
            file.seek(0)
            self.assertEqual(b"before\nline\nbehind\n", file.read())

    def test_full_disk(self) -> None:
        """A line is dropped when the disk is full."""
        with Path("/dev/full").open("ab") as full:
            file = LogFile(full.fileno())
            file.write(LINE)
            self.assertEqual((1, "No space left on device"), (file.lost, file.problem))


class TerminalTests(PipeTestCase):
    """``LogFile`` never blocks on a terminal."""

    def setUp(self) -> None:
        """Use a terminal in place of the pipe."""
        self.patch(os, "pipe", pty.openpty)
        super().setUp()

    def test_paused_terminal(self) -> None:
        """Lines are queued while a terminal is not read; afterwards lines are written at once."""
        lines = b"".join(b"%07d %s" % (number, LINE) for number in range(500))
        for line in lines.splitlines(keepends=True):
            self.file.write(line)
        self.assertFalse(self.file.has_kept_up)
        shown = lines.replace(b"\n", b"\r\n")
        self.assertEqual(shown, self.read(len(shown)))
        self.finish()
        self.file.write(b"again\n")
        self.assertEqual(b"again\r\n", self.read(7))
        self.assertEqual(0, self.file.lost)


class LogOutputTests(PipeTestCase):
    """``LogOutput`` reports dropped lines to the observers that still work."""

    def setUp(self) -> None:
        """Send events to the pipe, and to a list in place of the status page."""
        super().setUp()
        self.events: list[LogEvent] = []
        page = cast(ILogObserver, self.events.append)
        publisher = LogPublisher(page, LogOutput(self.file, text_line))
        self.patch(LogOutput, "_log", Logger(observer=publisher))
        self.log = Logger(namespace="part", observer=publisher)

    def own_events(self) -> list[str]:
        """Return the events about the log itself."""
        own = (event for event in self.events if event["log_namespace"].endswith("LogOutput"))
        return [str(event["log_format"]) for event in own]

    def test_loss_is_reported(self) -> None:
        """The start of a loss is reported once, and its end with the number of dropped lines."""
        for _ in range(2 * MAX_WAITING // len(LINE)):
            if not self.own_events():
                self.log.info("{text}", text="x" * 999)
        self.log.info("{text}", text="x" * 999)
        [begun] = self.own_events()
        self.assertIn("The log cannot be written: {problem}", begun)
        lost = self.file.lost
        self.assertGreater(lost, 0)
        reader = threading.Thread(target=self.read_until, args=(b"lines were lost\n",))
        reader.start()
        self.finish()
        # All lines are in the pipe, but the reader may not have read any yet.
        self.assertTrue(select.select([], [self.writer], [], SECONDS)[1])
        self.log.info("again")
        reader.join(SECONDS)
        self.assertIn(f"again; {lost} lines were lost\n".encode(), self.last)
        self.assertEqual(2, len(self.own_events()))

    def read_until(self, end: bytes) -> None:
        """Read until the output ends with ``end``; keep the last part."""
        assert self.reader is not None
        self.last = b""
        while not self.last.endswith(end):
            self.last = (self.last + os.read(self.reader, 65536))[-4000:]
