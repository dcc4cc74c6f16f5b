"""How the check tells what it has found."""

from __future__ import annotations

import io
import sys

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.quickstart import check


class MainTests(SynchronousTestCase):
    """Steps that succeed and steps that fail."""

    def setUp(self):
        """Let the steps be those of the test, and no cluster be asked."""
        self.patch(check.config, "load_kube_config", lambda path: None)
        self.said = io.StringIO()
        self.patch(sys, "stdout", self.said)

    def run_steps(self, *steps):
        """Run them, and give the exit status."""
        self.patch(check.Check, "steps", lambda self: list(steps))
        return check.main("kubeconfig")

    def test_all_work(self):
        """When all steps work there is a line for each, and status 0."""
        status = self.run_steps(("one", lambda: "seen"), ("two", lambda: "as well"))
        self.assertEqual(status, 0)
        first, second = self.said.getvalue().splitlines()
        self.assertRegex(first, r"^ok +one +\d+\.\d{3} s  seen$")
        self.assertRegex(second, r"^ok +two +\d+\.\d{3} s  as well$")

    def test_one_fails(self):
        """A step that fails is told in one line, the others are tried, and the status is 1."""

        def fails():
            raise check.CheckFailed("it is\nnot so")

        self.assertEqual(self.run_steps(("one", fails), ("two", lambda: "seen")), 1)
        first, second = self.said.getvalue().splitlines()
        self.assertRegex(first, r"^FAIL +one +\d+\.\d{3} s  it is not so$")
        self.assertRegex(second, r"^ok +two ")
