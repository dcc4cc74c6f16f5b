"""The file of ``--config`` while a program runs."""

from __future__ import annotations

import os

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.cache.caches import HeldJobs
from tests.logged import Logged
from tests.ops.configuration.program import ALONE, TARGET, WINDOW, ConfigurationFile, Options
from yurttunnel.ops.configuration.reloading import (
    CHECK_SECONDS,
    ChangeRejected,
    ConfigurationReloader,
)
from yurttunnel.ops.log_levels import LogLevelFilter
from yurttunnel.ops.readiness import Finding, Readiness

KEPT = "the previous configuration stays in use"


class ReloaderTests(ConfigurationFile, SynchronousTestCase):
    """``ConfigurationReloader`` has the program apply changed flags."""

    def setUp(self):
        """Start with one target; the program uses the targets and the window."""
        super().setUp()
        self.used = []
        self.logged = Logged(self, "yurttunnel")
        self.levels = LogLevelFilter()
        self.clock, self.jobs = Clock(), HeldJobs()
        self.start('node-name = "n"\ntarget = ["a"]')

    def start(self, text, *arguments):
        """Start a program with this content of its file."""
        self.write(text)
        options = Options({})
        options.parseOptions([f"--config={self.path}", *arguments])
        self.following = ConfigurationReloader(
            self.clock, self.read, options, options.file, self.levels
        )
        self.readiness = Readiness()
        self.following.follow((TARGET, WINDOW), self.use, self.readiness)
        self.following.startService()
        self.addCleanup(self.following.stopService)

    def read(self, function, argument):
        """Read the file at once, or as soon as the disk responds."""
        return self.jobs.run(lambda: function(argument))

    def use(self, settings):
        """Record the settings that the program gets."""
        self.used.append((settings.targets, settings.window))

    @property
    def lines(self):
        """The log's levels and messages."""
        levels = [event["log_level"].name for event in self.logged.events]
        texts = [text.replace(str(self.path), "FILE") for text in self.logged]
        return [f"{level}: {text}" for level, text in zip(levels, texts, strict=True)]

    def check(self, times=2):
        """Run the next two checks: a changed file is read at the second one."""
        for _ in range(times):
            self.clock.advance(CHECK_SECONDS)

    def change(self, text):
        """Replace the file, and run the checks that read it."""
        self.write(text)
        self.check()

    def problem(self):
        """Return the reported problem."""
        problem = self.following.problem()
        return None if problem is None else problem.replace(str(self.path), "FILE")

    def test_changed_flags(self):
        """Only changes of flags in use are applied; the log names the flags."""
        self.change('node-name = "n"\ntarget = ["a", "b"]')
        self.assertEqual([(("a", "b"), 30.0)], self.used)
        self.assertEqual(["info: changed in FILE, and in use: --target"], self.lines)
        self.change('node-name = "n"\ntarget = ["a", "b"]\nresume-window = "5"')
        self.change('# with a comment\nnode-name = "n"\ntarget = ["a", "b"]\nresume-window = 5')
        self.assertEqual([(("a", "b"), 5.0)], self.used[1:])
        self.change('node-name = "n"')
        self.assertEqual([((), 30.0)], self.used[2:])
        self.assertIsNone(self.problem())

    def test_command_line_takes_precedence(self):
        """The file cannot override a flag of the command line."""
        self.following.stopService()
        self.start('node-name = "n"', "--target=x", "--resume-window=1")
        self.change('node-name = "n"\ntarget = ["y"]\nresume-window = 2')
        self.assertEqual(([], []), (self.used, self.lines))

    def test_a_file_is_read_once_it_is_stable(self):
        """A file that differs at each check is not read, and an unchanged one is not read again."""
        for number in range(5):
            self.write(f'node-name = "n"\ntarget = ["{"x" * number}"]')
            self.check(1)
        self.assertEqual([], self.used)
        self.check(1)
        self.assertEqual([(("xxxx",), 30.0)], self.used)
        os.chmod(self.path, 0)
        self.patch(Options, "reread", None)
        self.check(10)
        self.assertEqual((None, 1), (self.problem(), len(self.used)))

    def test_a_broken_file_changes_nothing(self):
        """The error is logged once, and shown by /readyz until the file is valid and applies."""
        self.change("target = ")
        self.check(5)
        sentence = f"FILE: it is not TOML: Invalid value (at end of document); {KEPT}"
        self.assertEqual(sentence, self.problem())
        self.assertEqual([f"error: {sentence}"], self.lines)
        self.change('node-name = "n"\ntarget = [1, 1]')
        self.assertEqual(
            f"FILE: target 1 is given twice; {KEPT}",
            self.problem(),
        )
        self.change('node-name = "n"\ntarget = ["b"]')
        self.assertIsNone(self.problem())
        self.assertEqual([(("b",), 30.0)], self.used)
        self.assertEqual("info: FILE is in use again", self.lines[-1])

    def test_a_removed_file(self):
        """The configuration stays in use until the file exists again."""
        self.path.unlink()
        self.check()
        self.assertEqual(
            f"FILE: it cannot be read: No such file or directory; {KEPT}",
            self.problem(),
        )
        self.change('node-name = "n"\ntarget = ["a"]')
        self.assertEqual((None, []), (self.problem(), self.used))

    def test_a_file_that_was_emptied(self):
        """An empty file is ignored, since a full disk leaves such files; a comment suffices."""
        for empty in ("", " \n\n"):
            self.change(empty)
            self.assertEqual(
                "FILE: it is empty, perhaps because it is being written or the disk was full;"
                f" for no settings at all put a comment into it; {KEPT}",
                self.problem(),
            )
        self.assertEqual([], self.used)
        self.change('node-name = "n"\ntarget = ["a"]')
        self.assertEqual((None, []), (self.problem(), self.used))
        self.following.stopService()
        self.start("# nothing", "--node-name=n")
        self.change("target = ['b']")
        self.change("# nothing")
        self.assertEqual((None, [(("b",), 30.0), ((), 30.0)]), (self.problem(), self.used))

    def test_a_file_that_is_empty_at_the_start(self):
        """The start fails: a power failure leaves such files, whose restrictions would be lost."""
        self.following.stopService()
        for empty in ("", " \n\n"):
            error = self.assertRaises(UsageError, self.start, empty, "--node-name=n")
            self.assertIn(f"{self.path}: it is empty, perhaps because", str(error))

    def test_a_file_with_only_comments_at_the_start(self):
        """Content that is written later applies."""
        self.following.stopService()
        self.start("# nothing", "--node-name=n")
        self.change("target = ['b']")
        self.assertEqual((None, [(("b",), 30.0)]), (self.problem(), self.used))

    def test_flags_that_need_a_restart(self):
        """It is reported until the file has the initial value; all other changes apply."""
        self.change('node-name = "m"\ntarget = ["b"]\nstandalone = true')
        self.assertEqual([(("b",), 30.0)], self.used)
        sentence = "changed in FILE, needs a restart: --node-name, --standalone"
        self.assertEqual(sentence, self.problem())
        self.assertIn(f"warn: {sentence}", self.lines)
        self.change('node-name = "m"\ntarget = ["c"]\nstandalone = true')
        self.assertEqual(1, self.lines.count(f"warn: {sentence}"))
        self.change('node-name = "n"\ntarget = ["c"]')
        self.assertIsNone(self.problem())

    def test_a_program_that_rejects(self):
        """The setting stays unchanged, and the program is asked again until it accepts it."""
        refusal = [ChangeRejected("the port is taken")]

        async def refuse(settings):
            if refusal:
                raise refusal[0]
            self.use(settings)

        self.following.follow((ALONE,), refuse, Readiness())
        self.change('node-name = "n"\ntarget = ["a"]\nstandalone = true\nresume-window = 7')
        self.check(3)
        self.assertEqual(f"FILE: the port is taken; {KEPT}", self.problem())
        self.assertEqual([], self.used)
        refusal.clear()
        self.check(1)
        self.assertEqual(([(("a",), 7.0)], None), (self.used, self.problem()))

    def test_a_slow_program(self):
        """The next check waits for a program that applies a change asynchronously."""
        pending = Deferred()
        self.following.follow((), lambda settings: pending, Readiness())
        self.change('node-name = "n"\ntarget = ["b"]')
        self.change('node-name = "n"\ntarget = ["c"]')
        self.assertEqual([], self.lines)
        pending.callback(None)
        self.assertEqual(["info: changed in FILE, and in use: --target"], self.lines)

    def test_the_level_of_the_log(self):
        """Changes of --v apply; without it the log level of twist does."""
        self.change('node-name = "n"\ntarget = ["a"]\nv = 4')
        self.assertEqual(LogLevel.debug, self.levels.level)
        self.change('node-name = "n"\ntarget = ["a"]\nv = 0')
        self.assertEqual((LogLevel.info, False), (self.levels.level, self.levels.requests))
        self.change('node-name = "n"\ntarget = ["a"]')
        self.assertEqual((LogLevel.info, True), (self.levels.level, self.levels.requests))

    def test_readiness_finding(self):
        """A problem of the file is a finding that does not affect readiness."""
        self.assertEqual([Finding("configuration", None, False)], self.readiness.findings())
        self.change("target = 1")
        (finding,) = self.readiness.findings()
        self.assertIn("write an array of texts", finding.problem)
        self.assertFalse(finding.required)

    def test_a_disk_that_hangs(self):
        """Checks wait for the disk; a stop does not."""
        self.jobs.holds = True
        self.change('node-name = "n"\ntarget = ["b"]')
        self.check(5)
        self.assertTrue(self.successResultOf(self.following.stopService()))
        self.jobs.release()
        self.assertEqual(([], []), (self.used, self.clock.getDelayedCalls()))
