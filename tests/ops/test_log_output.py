"""The lines of the log."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, cast

from twisted.application.twist import _options
from twisted.internet.testing import MemoryReactor
from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    LogEvent,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    eventsFromJSONLogFile,
)
from twisted.python import usage
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import log_output
from yurttunnel.ops import options as ops_options
from yurttunnel.ops.log_file import LogFile
from yurttunnel.ops.log_levels import PREFORMATTED, REQUESTS, LogLevelFilter, request_log
from yurttunnel.ops.log_output import json_line, text_line
from yurttunnel.ops.options import CommandOptions

MOMENT = datetime(2026, 7, 5, 12, 30, 1, 250_000, tzinfo=UTC)


def logged(format: str = "", **fields: object) -> LogEvent:
    """Return the event of a warning."""
    events: list[LogEvent] = []
    observer = cast(ILogObserver, events.append)
    logger = Logger(namespace="yurttunnel.server.agents", observer=observer)
    logger.warn(format, **fields)
    events[0]["log_time"] = MOMENT.timestamp()
    return events[0]


def failed() -> Failure:
    """Return a failure with a traceback."""
    try:
        raise ZeroDivisionError("by nobody")
    except ZeroDivisionError:
        return Failure()


class TextTests(SynchronousTestCase):
    """The text format."""

    def line(self, format: str = "", **fields: object) -> str:
        """Return the line without its time."""
        line = text_line(logged(format, **fields))
        assert line is not None
        return line.partition(" ")[2]

    def test_message(self) -> None:
        """A line has the time with its zone, the namespace, the level and the text."""
        line = text_line(logged("{node}: gone", node="edge-1"))
        assert line is not None
        time, _, rest = line.partition(" ")
        self.assertEqual("[yurttunnel.server.agents#warn] edge-1: gone\n", rest)
        moment = datetime.strptime(time, "%Y-%m-%dT%H:%M:%S%z")
        self.assertEqual(MOMENT.replace(microsecond=0), moment)

    def test_traceback(self) -> None:
        """The lines of a traceback are indented, so that only log entries start with a time."""
        line = self.line("it failed", log_failure=failed())
        head, *rest = line.splitlines()
        self.assertTrue(head.endswith(" it failed"))
        self.assertIn("\tbuiltins.ZeroDivisionError: by nobody", rest)
        for each in rest:
            self.assertTrue(each.startswith("\t"), each)

    def test_control_characters(self) -> None:
        """Control characters are escaped, and a line break in a value cannot forge a log entry."""
        line = self.line(
            "from {who}", who="\x1b[2J\r\x00\x9b\x7f\n2026-07-05T12:30:01+0000 [x] forged"
        )
        self.assertEqual(
            "[yurttunnel.server.agents#warn] from \\x1b[2J\\x0d\\x00\\x9b\\x7f\n"
            "\t2026-07-05T12:30:01+0000 [x] forged\n",
            line,
        )

    def test_invalid_utf8(self) -> None:
        """Bytes that are not UTF-8 are escaped; letters of any language are unchanged."""
        line = self.line(
            "{who}", who="rand-\u00f6\u6771" + b"\xff".decode("utf-8", "surrogateescape")
        )
        self.assertEqual("[yurttunnel.server.agents#warn] rand-\u00f6\u6771\\udcff\n", line)

    def test_preformatted_message(self) -> None:
        """A preformatted message is written like one that is formatted here."""
        for text in ("GET /pods", "{not} a field", "two\nlines", "\x1b[2J"):
            self.assertEqual(
                self.line("a {what}", what=text), self.line("{line}", line=f"a {text}")
            )

    def test_no_message(self) -> None:
        """An event without a message writes no line."""
        self.assertIsNone(text_line(logged()))


class JSONTests(SynchronousTestCase):
    """The JSON format."""

    def entry(self, format: str = "", **fields: object) -> dict[str, Any]:
        """Return the object of the line."""
        line = json_line(logged(format, **fields))
        assert line is not None
        self.assertTrue(line.endswith("\n") and line.isascii())
        self.assertEqual(1, line.count("\n"))
        entry: dict[str, Any] = json.loads(line, parse_constant=self.fail)
        return entry

    def test_preformatted_message(self) -> None:
        """A preformatted message is written once, beside the event's other fields."""
        entry = self.entry(PREFORMATTED, line="GET /pods: 200", node="edge-1")
        self.assertEqual(("GET /pods: 200", "edge-1"), (entry["message"], entry["node"]))
        self.assertNotIn("line", entry)

    def test_message(self) -> None:
        """An object has the time in UTC, the level, the namespace, the text and the fields."""
        self.assertEqual(
            {
                "time": "2026-07-05T12:30:01.250Z",
                "level": "warn",
                "namespace": "yurttunnel.server.agents",
                "message": "edge-1: 3 streams, r-1",
                "node": "edge-1",
                "count": 3,
                "request_id": "r-1",
                "first": True,
                "seconds": 0.5,
                "code": None,
            },
            self.entry(
                "{node}: {count} streams, {request_id}",
                node="edge-1",
                count=3,
                request_id="r-1",
                first=True,
                seconds=0.5,
                code=None,
            ),
        )

    def test_other_fields(self) -> None:
        """A value that is neither text nor a finite number is only in the message."""
        address, nothing = ip_address("192.0.2.1"), float("nan")
        entry = self.entry("{address} {nothing}", address=address, nothing=nothing, log_x="x")
        self.assertEqual("192.0.2.1 nan", entry["message"])
        self.assertEqual({"time", "level", "namespace", "message"}, set(entry))

    def test_reserved_field_names(self) -> None:
        """A field with a reserved name is only in the message."""
        entry = self.entry("{message}", message="x", namespace="no", time=0, traceback="no")
        self.assertEqual(("x", "yurttunnel.server.agents"), (entry["message"], entry["namespace"]))
        self.assertEqual("2026-07-05T12:30:01.250Z", entry["time"])
        self.assertNotIn("traceback", entry)

    def test_traceback(self) -> None:
        """A failure has its traceback, without the values of variables."""
        entry = self.entry("it failed", log_failure=failed())
        self.assertEqual("it failed", entry["message"])
        self.assertIn("in failed", entry["traceback"])
        self.assertTrue(entry["traceback"].endswith("builtins.ZeroDivisionError: by nobody\n"))

    def test_hostile_text(self) -> None:
        """Any text in a field leaves the line one valid object."""
        text = '"\n}{\x00\u2028' + b"\xff".decode("utf-8", "surrogateescape")
        self.assertEqual(text, self.entry("{who}", who=text)["who"])

    def test_format_that_cannot_be_filled(self) -> None:
        """A message that cannot be formatted is reported in its line."""
        self.assertIn("Unable to format", self.entry("{missing}")["message"])

    def test_no_message(self) -> None:
        """An event without a message writes no line, unless it has a failure."""
        self.assertIsNone(json_line(logged()))
        self.assertIn("traceback", self.entry(log_failure=failed()))

    def test_of_the_old_logging(self) -> None:
        """Fields that Twisted adds for legacy observers are left out."""
        entry = self.entry("x", isError=1, system="-")
        self.assertEqual({"time", "level", "namespace", "message"}, set(entry))


class OneFlag(CommandOptions[int]):
    """A command without flags of its own."""

    def make_settings(self) -> int:
        """Return the settings."""
        return 7


class FlagTests(SynchronousTestCase):
    """``--log-format`` and ``--v``, and their effect on twist."""

    def setUp(self) -> None:
        """Make a level filter for the test, separate from the one of the test process."""
        self.levels = LogLevelFilter()
        self.patch(ops_options, "log_level_filter", self.levels)

    def parse(self, *arguments: str, of_twist: tuple[str, ...] = ()) -> _options.TwistOptions:
        """Parse a command line of twist with a plugin."""
        twist = _options.TwistOptions()
        twist["plugins"] = {"command": _Plugin()}
        twist["reactor"] = MemoryReactor()
        twist.parseOptions([*of_twist, "command", *arguments])
        return twist

    def refused(self, *arguments: str) -> str:
        """Return the error that a command line is rejected with."""
        stream = io.StringIO()
        with redirect_stderr(stream), self.assertRaises(SystemExit):
            self.parse(*arguments)
        return stream.getvalue()

    def written(self, twist: _options.TwistOptions) -> str:
        """Log one message of each kind with the settings of ``twist``; return the output."""
        file = self.file()
        # This is what twist's Runner does.
        observer = FilteringLogObserver(
            twist["fileLogObserverFactory"](file), [LogLevelFilterPredicate(twist["logLevel"])]
        )
        logger = Logger(namespace="part", observer=observer)
        requests = Logger(namespace=REQUESTS, observer=observer)
        logger.debug("detail")
        logger.info("event")
        requests.info("request")
        requests.warn("trouble")
        logger.error("failure")
        return Path(file.name).read_text()

    def test_talk_of_twisted(self) -> None:
        """Twisted's own informational messages are hidden at the default level."""
        for level, expected in (
            (LogLevel.info, ["trouble"]),
            (LogLevel.debug, ["starting on 10262", "Starting reactor...", "trouble"]),
        ):
            self.levels.set(level, requests=True)
            events: list[LogEvent] = []
            observer = FilteringLogObserver(events.append, [self.levels])
            Logger(namespace="log_legacy", observer=observer).info("starting on 10262")
            runner = Logger(namespace="twisted.application.runner._runner", observer=observer)
            runner.info("Starting reactor...")
            runner.warn("trouble")
            self.assertEqual(expected, [event["log_format"] for event in events])

    def file(self) -> IO[str]:
        """Open an empty file, like twist's flag ``--log-file``."""
        return self.enterContext(Path(self.mktemp()).open("a"))

    def shown(self, *arguments: str, of_twist: tuple[str, ...] = ()) -> list[str]:
        """Return the messages that a command line shows."""
        lines = self.written(self.parse(*arguments, of_twist=of_twist)).splitlines()
        return [line.rpartition(" ")[2] for line in lines]

    def test_text_is_the_default(self) -> None:
        """The text format is the default, also where there is no terminal."""
        twist = self.parse()
        self.assertIn("[part#info] event\n", self.written(twist))
        self.assertEqual("text", twist["logFormat"])

    def test_json(self) -> None:
        """Each line is a JSON object."""
        lines = self.written(self.parse("--log-format", "json")).splitlines()
        self.assertEqual(
            ["event", "request", "trouble", "failure"],
            [json.loads(line)["message"] for line in lines],
        )

    def test_not_twists_own_json(self) -> None:
        """Twist's own --log-format is ignored, since it cannot be told apart from its default."""
        written = self.written(self.parse(of_twist=("--log-format=json",)))
        self.assertEqual([], list(eventsFromJSONLogFile(io.StringIO(written))))

    def test_unknown_format(self) -> None:
        """An unknown format is rejected."""
        self.assertIn("--log-format: 'xml' is none of these", self.refused("--log-format=xml"))

    def test_verbosity(self) -> None:
        """Verbosity 0 and 1 hide single requests, 2 and 3 show them, 4 and more show everything."""
        normal = ["event", "trouble", "failure"]
        requests = ["event", "request", "trouble", "failure"]
        for verbosity, messages in (
            ("0", normal),
            ("1", normal),
            ("2", requests),
            ("3", requests),
            ("4", ["detail", *requests]),
            ("10", ["detail", *requests]),
        ):
            self.assertEqual(messages, self.shown(f"--v={verbosity}"), verbosity)

    def test_verbosity_as_in_go(self) -> None:
        """The flag may have one hyphen or two."""
        self.assertEqual("detail", self.shown("-v=4")[0])
        self.assertEqual("detail", self.shown("-v", "4")[0])

    def test_bad_verbosity(self) -> None:
        """An invalid verbosity is rejected."""
        for text in ("x", "-1", "", "\u0663"):
            self.assertRegex(self.refused(f"--v={text}"), "^--v: '.*' is not a number")

    def test_twists_level(self) -> None:
        """The level of twist applies without ``--v``; ``--v`` overrides it."""
        level = ("--log-level=error",)
        self.assertEqual(["failure"], self.shown(of_twist=level))
        self.assertEqual("event", self.shown("--v=2", of_twist=level)[0])

    def test_levels_can_be_changed_later(self) -> None:
        """The level of a running process can be changed."""
        twist = self.parse("--v=1")
        self.levels.set(LogLevel.critical, requests=True)
        self.assertEqual("", self.written(twist))
        self.levels.set(LogLevel.debug, requests=False)
        self.assertEqual(4, len(self.written(twist).splitlines()))
        self.levels.set(LogLevel.error, requests=False)
        self.assertEqual(1, len(self.written(twist).splitlines()))

    def test_floods(self) -> None:
        """Repeated warnings are limited."""
        file = self.file()
        logger = Logger(observer=self.parse()["fileLogObserverFactory"](file))
        for _ in range(1000):
            logger.warn("again")
        self.assertLess(len(Path(file.name).read_text().splitlines()), 100)

    def test_nowhere_to_write(self) -> None:
        """A process without standard error runs without a log."""
        descriptors: list[int] = []

        def file(descriptor: int) -> LogFile:
            self.addCleanup(os.close, descriptor)
            descriptors.append(descriptor)
            return LogFile(descriptor)

        self.patch(log_output, "LogFile", file)
        Logger(observer=self.parse()["fileLogObserverFactory"](None)).warn("trouble")
        self.assertEqual([os.devnull], [os.readlink(f"/proc/self/fd/{n}") for n in descriptors])

    def test_the_last_lines(self) -> None:
        """The log file is closed after the shutdown, so that queued lines are written."""
        twist = self.parse()
        twist["fileLogObserverFactory"](self.file())
        [(close, _, _)] = twist["reactor"].triggers["after"]["shutdown"]
        self.assertEqual("close", close.__name__)

    def test_without_twist(self) -> None:
        """A command that is run by another program does not configure the log."""
        options = OneFlag()
        options.parseOptions(["--log-format=json", "--v=4"])
        self.assertEqual(7, options.settings)
        self.assertEqual(LogLevel.info, self.levels.level)
        other = usage.Options()
        options = OneFlag()
        options.parent = other
        options.parseOptions([])
        self.assertEqual({}, dict(other))


class _Plugin:
    """A twist plugin for the command."""

    tapname = "command"
    description = "A command."
    options = OneFlag


class RequestLogTests(SynchronousTestCase):
    """The log of single requests."""

    def test_namespace(self) -> None:
        """The log has the namespace that the level filter checks."""
        self.assertEqual(REQUESTS, request_log.namespace)
