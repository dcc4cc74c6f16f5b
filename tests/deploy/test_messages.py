"""The collector of messages for the operator's manual."""

from __future__ import annotations

import ast

from twisted.trial import unittest

from tests.deploy.messages import Messages


def found_in(source, text_sources=frozenset()):
    """Return the keys of the messages in a source text, and whether one is without words."""
    messages = Messages(set(text_sources))
    messages.visit(ast.parse(source))
    return set(messages.found), messages.wordless


class CollectingTests(unittest.SynchronousTestCase):
    """All kinds of messages are collected."""

    def test_logged(self):
        """Warnings and more severe messages are collected; informational ones are not."""
        source = """
log.warn("{node}: gone for {seconds:g} s", node=node)
self._log.failure(f"{what!r} failed")
text = "kept under a name"
log.error(text)
log.info("all is well")
"""
        found, wordless = found_in(source)
        self.assertEqual({"…: gone for … s", "… failed", "kept under a name"}, found)
        self.assertFalse(wordless)

    def test_without_words(self):
        """A message whose text comes from elsewhere is detected."""
        self.assertEqual((set(), True), found_in('log.warn("{text}", text=text)'))
        self.assertEqual((set(), True), found_in("log.warn(text)"))

    def test_raised(self):
        """Errors at the start and listed reasons are collected; other exceptions are not."""
        source = """
raise usage.UsageError(f"--{flag} is missing")
raise CannotListen(flag, "the port is " + "taken")
exit_with_error(reactor, "internal error")
raise ValueError("not told like this")
"""
        found, _ = found_in(source)
        self.assertEqual({"--… is missing", "the port is taken", "internal error"}, found)

    def test_uses(self):
        """The use of a message is its log method, the start, or a reason in another message."""
        messages = Messages({"why"})
        source = """
log.warn("logged")
raise CannotListen(flag, "at a start")
raise StateError("in others")
why("in others, too")
"""
        messages.visit(ast.parse(source))
        expected = {"logged": {"warn"}, "at a start": {"start"}, "in others": {"reason"}}
        self.assertEqual({**expected, "in others, too": {"reason"}}, messages.uses)

    def test_text_sources(self):
        """Texts are collected from listed calls, attributes, entries and functions."""
        source = """
def notes():
    yield "from a function"
def why():
    return ("one of two", f"two of {2}")
def other():
    return "not listed"
self.problem = "in an attribute"
missing[4] = "in an entry"
tell("in a call")
"""
        found, _ = found_in(source, {"notes", "why", "problem", "missing", "tell"})
        expected = {"from a function", "one of two", "two of …", "in an attribute", "in an entry"}
        self.assertEqual({*expected, "in a call"}, found)
