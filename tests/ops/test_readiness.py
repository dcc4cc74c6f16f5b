"""Named checks."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.readiness import Finding, Readiness


class ReadinessTests(SynchronousTestCase):
    """What checks find."""

    def test_findings(self) -> None:
        """Each check's answer is given, in the order of the checks."""
        readiness = Readiness()
        readiness.add("listeners", lambda: None)
        readiness.add("certificate", lambda: "it has expired")
        self.assertEqual(
            [Finding("listeners", None), Finding("certificate", "it has expired")],
            readiness.findings(),
        )

    def test_checks_are_asked_each_time(self) -> None:
        """A check is asked whenever somebody looks."""
        answers = iter(["not yet", None])
        readiness = Readiness()
        readiness.add("cache", lambda: next(answers))
        self.assertEqual([Finding("cache", "not yet")], readiness.findings())
        self.assertEqual([Finding("cache", None)], readiness.findings())

    def test_not_required(self) -> None:
        """What is not required is told as such."""
        readiness = Readiness()
        readiness.add("every server", lambda: "one is away", required=False)
        self.assertEqual(
            [Finding("every server", "one is away", required=False)], readiness.findings()
        )

    def test_same_name(self) -> None:
        """Two checks of one name are a mistake."""
        readiness = Readiness()
        readiness.add("cache", lambda: None)
        error = self.assertRaises(ValueError, readiness.add, "cache", lambda: None)
        self.assertIn("'cache'", str(error))

    def test_check_that_raises(self) -> None:
        """A check that raises has failed, says so, and does not hide the others."""

        def broken() -> str | None:
            raise OSError("no such file")

        readiness = Readiness()
        readiness.add("broken", broken)
        readiness.add("other", lambda: None)
        [finding, other] = readiness.findings()
        self.assertIn("no such file", finding.problem or "")
        self.assertEqual(Finding("other", None), other)
        self.assertEqual(1, len(self.flushLoggedErrors(OSError)))
