"""Parsers of durations, ports and addresses in flags."""

from __future__ import annotations

import enum
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import flags


class FlagTests(SynchronousTestCase):
    """Each parser returns a value or raises an error of one line."""

    def test_durations_are_seconds_or_carry_units(self) -> None:
        """A duration is a number of seconds, or a series of units from large to small."""
        for text, seconds in {
            "30": 30.0,
            "2.5": 2.5,
            " 30s ": 30.0,
            "500ms": 0.5,
            "5m": 300.0,
            "1h30m": 5400.0,
            "7d": 604800.0,
            "0": 0.0,
        }.items():
            self.assertEqual(flags.duration(text), seconds, text)

    def test_invalid_durations_are_rejected(self) -> None:
        """Negative, infinite and malformed durations are rejected."""
        for text in ("", "s", "-1", "1e9", "nan", "inf", "1m1h", "1m1m", "30s5", "5 m", "99999d"):
            with self.assertRaises(ValueError, msg=text):
                flags.duration(text)

    def test_a_resume_window_is_at_most_a_day(self) -> None:
        """A resume window of more than a day is rejected."""
        self.assertEqual(flags.resume_window("24h"), 86400.0)
        with self.assertRaises(ValueError):
            flags.resume_window("24h1s")

    def test_ports_are_from_1_to_65535(self) -> None:
        """A port is a number in ASCII digits."""
        self.assertEqual((flags.port("1"), flags.port("65535")), (1, 65535))
        for text in ("0", "65536", "", "-1", "+1", "1_0", "x", "\u0661", "1.0"):
            with self.assertRaises(ValueError, msg=text):
                flags.port(text)

    def test_a_port_may_follow_a_host(self) -> None:
        """A host may have a port; an IPv6 address with a port needs brackets."""
        for text, expected in {
            "a": ("a", 7),
            "a.example:1": ("a.example", 1),
            "192.0.2.1:10": ("192.0.2.1", 10),
            "::1": ("::1", 7),
            "[::1]": ("::1", 7),
            "[::1]:5": ("::1", 5),
            "fe80::1%eth0": ("fe80::1%eth0", 7),
            "A.Example.:1": ("a.example", 1),
            "[::FFFF:192.0.2.1]:1": ("192.0.2.1", 1),
        }.items():
            self.assertEqual(flags.host_port(text, 7), expected, text)

    def test_invalid_host_and_port_are_rejected(self) -> None:
        """URLs, empty parts and misplaced brackets are rejected."""
        for text in (
            "",
            ":1",
            "192.0.513",
            "a:",
            "a:0",
            "a b:1",
            "[::1",
            "[::1]5",
            "[a]:1",
            "http://a",
            "a/b",
        ):
            with self.assertRaises(ValueError, msg=text):
                flags.host_port(text, 7)

    def test_listening_addresses_are_addresses(self) -> None:
        """A listening address is IPv4 or IPv6, with or without brackets; names are rejected."""
        self.assertEqual("::1", flags.listening_address("[::1]"))
        self.assertEqual("0.0.0.0", flags.listening_address(" 0.0.0.0 "))
        self.assertEqual("127.0.0.1", flags.listening_address("::ffff:127.0.0.1"))
        self.assertEqual("fe80::1%eth0", flags.listening_address("fe80::1%eth0"))
        for text in ("", "localhost", "1.2.3"):
            with self.assertRaises(ValueError, msg=text):
                flags.listening_address(text)

    def test_numbers(self) -> None:
        """Numbers are decimal and have at most nine digits; a count is at least one."""
        self.assertEqual((0, 12, 1), (flags.number("0"), flags.number("12"), flags.count("1")))
        for text in ("", "-1", "1.0", "1e3", "\u0661", "1" * 10):
            with self.assertRaises(ValueError, msg=text):
                flags.number(text)
        for text in ("0", "-1", "a"):
            with self.assertRaises(ValueError, msg=text):
                flags.count(text)

    def test_members(self) -> None:
        """The error for an unknown member lists all members."""
        parse = flags.member(enum.Enum("Way", {"A": "a", "B": "b"}))
        self.assertEqual("B", parse("b").name)
        with self.assertRaises(ValueError) as raised:
            parse("c")
        self.assertEqual("'c' is none of these: a, b", str(raised.exception))

    def test_paths(self) -> None:
        """An empty path and a path that starts with ~ are rejected."""
        self.assertEqual(Path("a"), flags.path("a"))
        with self.assertRaises(ValueError):
            flags.path("")
        with self.assertRaisesRegex(ValueError, "nothing replaces the ~ here"):
            flags.path("~/a")

    @given(st.text(max_size=60))
    def test_no_text_breaks_a_parser(self, text: str) -> None:
        """Every error is one line, whatever the input."""
        for parse in (flags.duration, flags.port, flags.host):
            try:
                parse(text)
            except ValueError as reason:
                self.assertEqual(len(str(reason).splitlines()), 1)
