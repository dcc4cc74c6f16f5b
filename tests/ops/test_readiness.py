"""Named readiness checks."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.readiness import Finding, Readiness


class ReadinessTests(SynchronousTestCase):
    """The results of checks."""

    def test_findings(self) -> None:
        """Each check's result is returned, in the order of registration."""
        readiness = Readiness()
        readiness.add("listeners", lambda: None)
        readiness.add("certificate", lambda: "it has expired")
        self.assertEqual(
            [Finding("listeners", None), Finding("certificate", "it has expired")],
            readiness.findings(),
        )

    def test_checks_run_each_time(self) -> None:
        """A check runs each time the results are read."""
        answers = iter(["not yet", None])
        readiness = Readiness()
        readiness.add("cache", lambda: next(answers))
        self.assertEqual([Finding("cache", "not yet")], readiness.findings())
        self.assertEqual([Finding("cache", None)], readiness.findings())

    def test_not_required(self) -> None:
        """The result of an optional check is marked as not required."""
        readiness = Readiness()
        readiness.add("every server", lambda: "one is away", required=False)
        self.assertEqual(
            [Finding("every server", "one is away", required=False)], readiness.findings()
        )

    def test_control_characters(self) -> None:
        """Control characters are escaped: a problem may quote another machine."""
        readiness = Readiness()
        readiness.add("Kubernetes API", lambda: "\x1b[2J\nready\udcff (500)")
        [finding] = readiness.findings()
        self.assertEqual("\\x1b[2J\\nready\\udcff (500)", finding.problem)

    def test_same_name(self) -> None:
        """A second check of the same name raises ValueError."""
        readiness = Readiness()
        readiness.add("cache", lambda: None)
        error = self.assertRaises(ValueError, readiness.add, "cache", lambda: None)
        self.assertIn("'cache'", str(error))

    def test_check_that_raises(self) -> None:
        """A check that raises has failed with the error, and the other checks still run."""

        def broken() -> str | None:
            raise OSError("no such file")

        readiness = Readiness()
        readiness.add("broken", broken)
        readiness.add("other", lambda: None)
        [finding, other] = readiness.findings()
        self.assertIn("no such file", finding.problem or "")
        self.assertEqual(Finding("other", None), other)
        self.assertEqual(1, len(self.flushLoggedErrors(OSError)))
