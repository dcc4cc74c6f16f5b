"""Pages of /debug that a worker makes for the first process."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.debug.pages import BadParameter, Page, as_json, text
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.channel import MOST_FIELDS
from yurttunnel.server.workers.pages import AnsweredPages


class AnsweredPagesTests(SynchronousTestCase):
    """A worker that is asked."""

    def setUp(self):
        """Have pages that answer now and later."""
        self.sent = []
        self.later = Deferred()
        self.changed = []
        pages = {
            "now": Page(lambda parameters: as_json(dict(parameters)), self.change, ("a",)),
            "later": Page(lambda parameters: self.later),
            "defect": Page(lambda parameters: 1 / 0),
            "long": Page(lambda parameters: text("x" * MOST_FIELDS)),
        }
        self.pages = AnsweredPages(pages, self.send)

    def change(self, parameters):
        """Be asked to change something."""
        if not parameters:
            raise BadParameter("a is wanted")
        self.changed.append(parameters)
        return text("changed")

    def send(self, kind, fields):
        """Be the channel."""
        self.assertEqual(kind, messages.PAGE_ANSWER)
        if len(fields["body"]) >= MOST_FIELDS:
            raise ValueError("too long")
        self.sent.append((fields["number"], fields["status"], fields["body"]))

    def ask(self, name, method="GET", **parameters):
        """Ask for a page; what has been answered until now."""
        fields = {"number": 7, "name": name, "method": method, "parameters": parameters}
        self.pages.show(fields)
        return self.sent[-1] if self.sent else None

    def test_answers_are_sent(self):
        """With the number of the question, to whichever method."""
        self.assertEqual(self.ask("now", a="1"), (7, 200, '{\n "a": "1"\n}\n'))
        self.assertEqual(self.ask("now", "POST", a="2"), (7, 200, "changed"))
        self.assertEqual(self.changed, [{"a": "2"}])
        self.assertEqual(self.ask("now", "POST"), (7, 400, "a is wanted\n"))

    def test_an_answer_may_take_its_time(self):
        """It is sent when it is there."""
        self.assertIsNone(self.ask("later"))
        self.later.callback(text("at last"))
        self.assertEqual(self.sent, [(7, 200, "at last")])

    def test_a_defect_is_answered(self):
        """The log says what it was."""
        self.assertEqual(self.ask("defect")[1], 500)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_page_that_does_not_fit_says_so(self):
        """And what to ask for."""
        self.assertEqual(
            self.ask("long"), (7, 500, "the page is too long: ask for one ?node=NAME\n")
        )
