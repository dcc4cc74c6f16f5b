"""What a worker logs is in the log of the first process as if it had been logged there."""

from __future__ import annotations

import json

from twisted.internet.address import IPv4Address
from twisted.logger import Logger, LogLevel, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.log_floods import MOST_SHOWN, PERIOD, FloodLimit
from yurttunnel.ops.status.events import KEPT, RecentEvents
from yurttunnel.server.workers import log, messages
from yurttunnel.server.workers.channel import MOST_FIELDS
from yurttunnel.server.workers.log import LONGEST_TEXT, LogToFirst, write_log

ADDRESS = IPv4Address("TCP", "192.0.2.1", 1)


class LogTests(SynchronousTestCase):
    """Both ends, with JSON between them."""

    def setUp(self):
        """Listen to the log of the first process."""
        self.events = []
        self.sizes = []
        self.to_first = LogToFirst(self, verbose=False)
        self.log = Logger(namespace="of.worker", observer=self.to_first)
        # Not with what trial hears, whose workers cannot pass texts on that are this long.
        self.patch(log, "Logger", lambda namespace: Logger(namespace, observer=self.hear))

    def hear(self, event):
        """Keep what is a worker's."""
        if "worker" in event:
            self.events.append(event)

    def send(self, kind, fields):
        """Be the channel, of which the other end writes at once."""
        self.assertEqual(kind, messages.LOG)
        written = json.dumps(fields)
        self.sizes.append(len(written))
        write_log(json.loads(written), 3)

    def said(self):
        """Return the format and the text of the one event."""
        (event,) = self.events
        self.events.clear()
        self.assertEqual((event["worker"], event["log_namespace"]), (3, "of.worker"))
        return event["log_format"], formatEvent(event)

    def test_the_format_stays_and_plain_fields_too(self):
        """Texts, numbers and truth values are the same there, for logs in JSON."""
        format = "{node}: {seconds:.1f} s, {count} of {all!r} {{so}} {nothing}"
        fields = {"node": "{n}", "seconds": 1.25, "count": 2, "all": "x", "nothing": None}
        self.log.warn(format, **fields, other=True, address=ADDRESS)
        (event,) = self.events
        for name, value in {**fields, "other": True}.items():
            self.assertEqual(event[name], value)
        self.assertNotIn("address", event)
        self.assertEqual(event["log_level"], LogLevel.warn)
        self.assertEqual(self.said(), (format, "{n}: 1.2 s, 2 of 'x' {so} None"))

    def test_what_json_has_not_is_filled_in(self):
        """Each such thing by itself: the format is the same whatever it is."""
        formats = set()
        for error in (ValueError("{no}"), KeyError("other")):
            text = f"{{of}} edge: {error} {error!r} 192.0.2.1 late"
            self.log.warn(
                "{{of}} {node}: {error} {error!r} {address.host} {call()}",
                node="edge",
                error=error,
                address=ADDRESS,
                call=lambda: "late",
            )
            format, said = self.said()
            self.assertEqual(said, text)
            formats.add(format)
        (format,) = formats
        self.assertIn("{node}", format)

    def test_failures_come_with_their_traceback(self):
        """As text, below the message."""
        try:
            raise ValueError("wrong")
        except ValueError:
            self.log.failure("it failed for {node}", node="edge", failure=Failure())
        format, text = self.said()
        self.assertTrue(format.startswith("it failed for {node}\n"))
        self.assertTrue(text.startswith("it failed for edge\nTraceback"))
        self.assertIn("ValueError: wrong", text)

    def test_whatever_is_logged_arrives(self):
        """Without a format, with one that cannot be filled, and with what has names of its own."""
        self.to_first({"log_namespace": "of.worker", "log_level": LogLevel.warn})
        self.assertEqual(self.said()[1], "")
        for format in ("{", "{missing}", "{0}"):
            self.log.warn(format)
            self.assertIn("Unable to format event", self.said()[1])
        fields = {"level": "l", "format": "f", "self": "s", "worker": "w", "system": "y"}
        event = {"log_format": "{level}{format}{self}{worker}{system}", **fields}
        self.to_first({"log_namespace": "of.worker", "log_level": LogLevel.warn, **event})
        self.assertEqual(self.said()[1], "lfswy")

    def test_long_texts_are_cut(self):
        """So that any message fits into one between the processes."""
        long = "\U0001f4a9" * LONGEST_TEXT
        self.log.warn("{one} {other}", one=long, other=long)
        (event,) = self.events
        self.assertEqual((event["one"], event["other"]), (long, ""))
        self.log.warn("x" * (LONGEST_TEXT + 1))
        self.assertLess(max(self.sizes), MOST_FIELDS)

    def test_the_level_can_be_changed(self):
        """What is only to find defects is sent when it is wanted."""
        self.log.debug("not wanted")
        self.assertEqual(self.events, [])
        self.to_first.verbose = True
        self.log.debug("wanted")
        self.assertEqual(self.said()[1], "wanted")

    def test_strangers_take_one_place_of_the_status_page(self):
        """However many there are; what others have warned of stays."""
        # The page hears what all hear.
        self.patch(log, "Logger", Logger)
        recent = RecentEvents()
        recent.startService()
        self.addCleanup(recent.stopService)
        self.log.warn("something else")
        for number in range(2 * KEPT):
            self.log.warn("from {address}", address=f"192.0.2.{number}")
        texts = [each.text for each in recent.newest_first()]
        self.assertIn("something else", texts)
        self.assertIn(f"from 192.0.2.{2 * KEPT - 1}", texts)
        self.assertNotIn("from 192.0.2.0", texts)

    def test_a_flood_is_told_as_one(self):
        """The limits of both processes know it by its format; the first message after it counts."""
        in_worker, last = FloodLimit(self.to_first), MOST_SHOWN + 5
        for number in range(last + 1):
            time = PERIOD if number == last else 0
            fields = {"log_level": LogLevel.warn, "log_namespace": "of.worker", "log_time": time}
            in_worker({**fields, "log_format": "from {n}", "n": number})
        self.assertEqual([event["n"] for event in self.events], [*range(MOST_SHOWN), last])
        text = f"from {last} (5 more from this place were not shown)"
        self.assertEqual(formatEvent(self.events[-1]), text)
        shown = []
        in_first = FloodLimit(shown.append)
        for event in [*self.events[:-1], *self.events[:-1]]:
            in_first(event)
        self.assertEqual(len(shown), MOST_SHOWN)
