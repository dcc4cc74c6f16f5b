"""Selectors of clients; the tests of the cache cover what they select."""

from __future__ import annotations

import time

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.kube.selectors import BadSelector, field_terms, label_test


class LongTests(SynchronousTestCase):
    """A selector may be as long as the head of a request."""

    def test_read_in_a_moment(self):
        """Invalid selectors are rejected in linear time."""
        before = time.process_time()
        for end in ("!", "in", "("):
            for part in ("a=", "a!=", "a in (", "a notin", "a", "!", ""):
                for filling in (" ", "a", "(", "!", ",", "=", "\\"):
                    text = part + filling * 100_000 + end
                    for read in (label_test, field_terms):
                        try:
                            read(text)
                        except BadSelector:
                            continue
        # One of them alone took half a minute.
        self.assertLess(time.process_time() - before, 15)

    def test_many_requirements(self):
        """All requirements that fit into a head are parsed, and each counts."""
        test = label_test(",".join(f"key-{number} != x" for number in range(30_000)))
        self.assertTrue(test({"key-1": "y"}))
        self.assertFalse(test({"key-29999": "x"}))


class ComparisonTests(SynchronousTestCase):
    """``>`` and ``<`` compare integers."""

    def test_numbers_are_those_of_the_api(self):
        """Text that only Python parses as a number, or that is too long, does not match."""
        for value in ("1_0", "1_000", "x", "", str(2**63), "9" * 64, "9" * 5_000):
            for selector in ("a>5", "a<5", f"b>{value}", f"b<{value}"):
                self.assertFalse(label_test(selector)({"a": value, "b": "7"}), selector)
        self.assertTrue(label_test("a>5,a<11,a>-3")({"a": "010"}))
        self.assertTrue(label_test(f"a<{2**63 - 1}")({"a": str(-(2**63))}))
