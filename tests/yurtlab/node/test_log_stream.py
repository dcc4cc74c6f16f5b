"""The flags of ``kubectl logs``, following, rotation and slow clients."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.node.logs import ContainerLog, LogOptions, LogStream
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed

SECOND = 1_000_000_000


class FakeExchange:
    """Records one response."""

    def __init__(self):
        self.status = 0
        self.body = b""
        self.finished = False
        self.producer = None
        self.pause_after = None
        self._ends = []

    def send_head(self, status, fields=()):
        """Record the status."""
        self.status = status

    def write(self, data):
        """Record the data."""
        assert self.status and not self.finished
        self.body += data
        if self.pause_after is not None and len(self.body) >= self.pause_after:
            self.producer.pauseProducing()

    def finish(self):
        """Record the end."""
        assert self.producer is None and not self.finished
        self.finished = True

    def registerProducer(self, producer, streaming):
        """Record the producer."""
        assert streaming
        self.producer = producer

    def unregisterProducer(self):
        """Remove the producer."""
        self.producer = None

    def on_end(self, callback):
        """Record the callback."""
        self._ends.append(callback)

    def client_leaves(self):
        """Call the callbacks as if the client had disconnected."""
        for callback in self._ends:
            callback(ExchangeFailed("the client has closed the connection"))


class LogStreamTests(SynchronousTestCase):
    """The content of responses."""

    def setUp(self):
        """Make a log with a few lines, a second apart."""
        self.time = 0
        path = Path(self.mktemp()) / "0.log"
        self.log = ContainerLog(path, max_bytes=10_000, now=lambda: self.time)
        self.addCleanup(self.log.close)
        for line in (b"one\n", b"two\n", b"three\n"):
            self.log.write("stdout", line)
            self.time += SECOND

    def ask(self, **options):
        """Request the log."""
        exchange = FakeExchange()
        exchange.pause_after = options.pop("pause_after", None)
        LogStream(self.log, LogOptions(**options), exchange).start()
        return exchange

    def body(self, **options):
        """Return the complete body."""
        exchange = self.ask(**options)
        self.assertTrue(exchange.finished)
        self.assertEqual(exchange.status, 200)
        return exchange.body

    def test_all(self):
        """Without options it is the whole output."""
        self.log.write("stderr", b"error\nno end")
        self.log.close()
        self.assertEqual(self.body(), b"one\ntwo\nthree\nerror\nno end")

    def test_binary(self):
        """All bytes are sent unchanged."""
        data = bytes(range(256)) * 3
        self.log.write("stdout", data)
        self.log.close()
        self.assertEqual(self.body(), b"one\ntwo\nthree\n" + data)

    def test_pieces(self):
        """A line that was written in pieces is sent as one line, with one time."""
        for piece in (b"a", b"b", b"c\n", b"d\n"):
            self.log.write("stdout", piece)
        self.assertEqual(self.body(tail_lines=2), b"abc\nd\n")
        self.assertEqual(
            self.body(tail_lines=2, timestamps=True),
            b"1970-01-01T00:00:03.000000000Z abc\n1970-01-01T00:00:03.000000000Z d\n",
        )

    def test_timestamps(self):
        """With timestamps each line has its own."""
        self.assertEqual(
            self.body(timestamps=True).splitlines()[1], b"1970-01-01T00:00:01.000000000Z two"
        )

    def test_tail(self):
        """The requested number of last lines is sent, or all."""
        expected = {0: b"", 1: b"three\n", 2: b"two\nthree\n", 3: b"one\ntwo\nthree\n"}
        for lines, body in expected.items():
            self.assertEqual(self.body(tail_lines=lines), body)
        self.assertEqual(self.body(tail_lines=100), expected[3])

    def test_tail_of_unfinished(self):
        """An incomplete last line counts if nothing follows."""
        self.log.write("stdout", b"unfinished")
        self.assertEqual(self.body(tail_lines=1), b"three\n")
        self.log.close()
        self.assertEqual(self.body(tail_lines=1), b"unfinished")
        self.assertEqual(self.body(tail_lines=2), b"three\nunfinished")

    def test_tail_of_nothing(self):
        """The tail of an empty log is empty."""
        self.log = ContainerLog(Path(self.mktemp()) / "0.log")
        self.addCleanup(self.log.close)
        self.assertEqual(self.body(tail_lines=5), b"")

    def test_since(self):
        """Lines before the given time are skipped."""
        since = b"1970-01-01T00:00:01.000000000Z"
        self.assertEqual(self.body(since=since), b"two\nthree\n")
        self.assertEqual(self.body(since=since, tail_lines=1), b"three\n")
        self.assertEqual(self.body(since=b"1970-01-02T00:00:00.000000000Z"), b"")

    def test_limit(self):
        """The response is cut at the byte limit, wherever that is."""
        self.assertEqual(self.body(limit_bytes=6), b"one\ntw")
        self.assertEqual(self.body(limit_bytes=6, follow=True), b"one\ntw")
        self.assertEqual(self.body(limit_bytes=100), b"one\ntwo\nthree\n")
        self.assertEqual(self.body(limit_bytes=10, timestamps=True), b"1970-01-01")

    def test_follow(self):
        """A follower gets what is added, until the process ends."""
        exchange = self.ask(follow=True, tail_lines=1)
        self.assertEqual(exchange.body, b"three\n")
        self.log.write("stdout", b"fo")
        self.assertEqual(exchange.body, b"three\n")
        self.log.write("stdout", b"ur\n")
        self.assertEqual(exchange.body, b"three\nfour\n")
        self.assertFalse(exchange.finished)
        self.log.close()
        self.assertEqual(exchange.body, b"three\nfour\n")
        self.assertTrue(exchange.finished)

    def test_follow_the_ended(self):
        """Following the log of a terminated process ends at once."""
        self.log.close()
        self.assertEqual(self.body(follow=True), b"one\ntwo\nthree\n")

    def test_follow_through_rotation(self):
        """A follower gets all lines across a rotation."""
        exchange = self.ask(follow=True)
        lines = [b"%04d " % number + b"x" * 90 + b"\n" for number in range(1000)]
        for line in lines:
            self.log.write("stdout", line)
        self.log.close()
        self.assertEqual(exchange.body, b"one\ntwo\nthree\n" + b"".join(lines))

    def test_both_files(self):
        """The rotated file is included, and counts for the last lines."""
        lines = [b"%04d " % number + b"x" * 90 + b"\n" for number in range(100)]
        for line in lines:
            self.log.write("stdout", line)
        self.assertEqual(len(self.log.segments), 2)
        self.assertEqual(self.body(), b"one\ntwo\nthree\n" + b"".join(lines))
        for count in range(1, 101):
            self.assertEqual(self.body(tail_lines=count), b"".join(lines[-count:]))

    def test_slow_client(self):
        """A paused client is sent nothing, and loses nothing that still exists."""
        exchange = self.ask(follow=True, pause_after=1)
        first = exchange.body
        self.log.write("stdout", b"more\n")
        self.log.close()
        self.assertEqual(exchange.body, first)
        self.assertFalse(exchange.finished)
        exchange.pause_after = None
        exchange.producer.resumeProducing()
        self.assertEqual(exchange.body, b"one\ntwo\nthree\nmore\n")
        self.assertTrue(exchange.finished)

    def test_slow_client_of_a_log_that_is_removed(self):
        """It gets the rest of its current file, and no deleted file."""
        lines = [b"%04d " % number + b"x" * 90 + b"\n" for number in range(100)]
        for line in lines:
            self.log.write("stdout", line)
        exchange = self.ask(follow=True, pause_after=1)
        self.log.remove()
        exchange.pause_after = None
        exchange.producer.resumeProducing()
        self.assertTrue(exchange.finished)
        self.assertTrue((b"one\ntwo\nthree\n" + b"".join(lines)).startswith(exchange.body))

    def test_large_log_to_slow_client(self):
        """A large log is read only as fast as the client reads."""
        for _ in range(100):
            self.log.write("stdout", b"x" * 9000 + b"\n")
        exchange = self.ask(pause_after=1)
        self.assertLess(len(exchange.body), 70_000)

    def test_client_leaves(self):
        """Nothing is sent to a client that has disconnected."""
        exchange = self.ask(follow=True)
        exchange.client_leaves()
        before = exchange.body
        self.log.write("stdout", b"more\n")
        self.assertEqual(exchange.body, before)
        self.assertEqual(self.log._readers, [])


class LogOptionsTests(SynchronousTestCase):
    """Query parameters."""

    def options(self, now=10.0, **query):
        """Parse a query."""
        return LogOptions.from_query({name: [value] for name, value in query.items()}, now)

    def test_none(self):
        """The default is everything, once."""
        self.assertEqual(self.options(), LogOptions())

    def test_all(self):
        """All parameters are parsed."""
        self.assertEqual(
            self.options(
                follow="true",
                previous="1",
                timestamps="true",
                tailLines="7",
                limitBytes="8",
                sinceSeconds="4",
            ),
            LogOptions(True, True, True, 7, 8, b"1970-01-01T00:00:06.000000000Z"),
        )

    def test_true(self):
        """Every value except false is true, as in the API."""
        for text in ("true", "True", "1", "t"):
            self.assertTrue(self.options(follow=text).follow, text)
        for text in ("false", "False", "0", "f", ""):
            self.assertFalse(self.options(follow=text).follow, text)

    def test_times(self):
        """Times have the format of Go, in any time zone."""
        for text, expected in {
            "2023-11-14T22:13:20Z": b"2023-11-14T22:13:20.000000000Z",
            "2023-11-14T22:13:20.5Z": b"2023-11-14T22:13:20.500000000Z",
            "2023-11-15T00:13:20.123456789+02:00": b"2023-11-14T22:13:20.123456789Z",
        }.items():
            self.assertEqual(self.options(sinceTime=text).since, expected)

    def test_senseless(self):
        """Invalid values are rejected, with the name of the parameter."""
        for query in (
            {"tailLines": "-1"},
            {"tailLines": "many"},
            {"limitBytes": "0"},
            {"sinceSeconds": "0"},
            {"sinceSeconds": "1" + "0" * 400},
            {"sinceTime": "yesterday"},
            {"sinceTime": "2023-13-14T22:13:20Z"},
            {"sinceTime": "9999-12-31T23:59:59-23:59"},
            {"sinceTime": "2023-11-14T22:13:20Z", "sinceSeconds": "1"},
        ):
            error = self.assertRaises(RequestFailed, self.options, **query)
            self.assertIn(next(iter(query)), str(error))
