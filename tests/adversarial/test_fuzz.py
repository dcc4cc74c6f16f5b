"""Some thousand reproducible random cases for each parser of untrusted bytes.

``python -m tests.fuzz --cases 1000000`` runs more cases, ``--seed`` other ones.
"""

from __future__ import annotations

import contextlib
import io
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz import guided
from tests.fuzz.campaign import CaseFailed, Outcome, campaign
from tests.fuzz.cases import Target
from tests.fuzz.targets import TARGETS

CASES = 1500

MAX_GROWTH = 4 * 2**20
"""The maximum growth of memory during the cases, bytes: 3 KiB a case. Half a megabyte is usual."""


class FuzzTests(SynchronousTestCase):
    """No parser crashes, hangs, or depends on how the bytes are split."""

    def survives(self, name: str) -> None:
        """Check the cases of one target, some of which must be accepted and some rejected."""
        outcome = self.run_through(name)
        self.assertTrue(0 < outcome.accepted < CASES, outcome)

    def run_through(self, name: str) -> Outcome:
        """Check the cases of one target, which must not leak memory."""
        outcome = campaign(TARGETS[name], CASES, seed=7)
        self.assertLess(outcome.growth, MAX_GROWTH, outcome)
        return outcome

    def test_sessions(self) -> None:
        """Each stream of a session receives its own bytes, within the session's memory."""
        self.survives("wire-server")
        self.survives("wire-agent")

    def test_first_frames(self) -> None:
        """A HELLO is read as it was written, or rejected."""
        self.survives("hello")

    def test_requests(self) -> None:
        """The forwarded request is the request that was read."""
        self.survives("request")

    def test_responses(self) -> None:
        """The forwarded response is the response that was read."""
        self.survives("response")

    def test_chunked_bodies(self) -> None:
        """A chunked body is decoded as RFC 9112 specifies, or rejected."""
        self.survives("chunks")

    def test_authorities(self) -> None:
        """A destination has no character that is invalid in a host."""
        self.survives("authority")

    def test_client_hellos(self) -> None:
        """The name in a ClientHello does not depend on how it is split."""
        self.survives("client-hello")

    def test_enrolments(self) -> None:
        """An enrolment request, with its identifiers and its key, is parsed or rejected."""
        self.survives("enrolment")
        self.survives("identifiers")
        self.survives("certificate-request")

    def test_certificates(self) -> None:
        """A certificate names a node by the rules, or is rejected."""
        self.survives("certificate")

    def test_siblings(self) -> None:
        """A line in a sibling's list of nodes is read as it was written, or rejected."""
        self.survives("sibling")

    def test_paths(self) -> None:
        """The logs describe a request's path, and the pod it names, in printable words."""
        self.survives("path")

    def test_lines(self) -> None:
        """Untrusted text forges no log line, and no secret is quoted."""
        self.run_through("line")
        self.survives("quoted")

    def test_requests_of_the_hub(self) -> None:
        """A request to the hub has valid names, or is rejected."""
        self.survives("hub-request")

    def test_lists_and_watches(self) -> None:
        """Lists and watches of the API are split into the same items, or rejected."""
        self.survives("hub-json-list")
        self.survives("hub-json-watch")
        self.survives("hub-protobuf-list")
        self.survives("hub-protobuf-watch")

    def test_requests_of_the_command(self) -> None:
        """Requests to a program's socket are answered, and reveal no secret."""
        self.survives("admin")
        self.survives("admin-agent")
        self.survives("admin-hub")
        self.survives("admin-proxy")

    def test_every_target_is_here(self) -> None:
        """The tests above check every target."""
        names = "wire-server wire-agent hello request response chunks authority client-hello"
        names += " enrolment identifiers certificate-request certificate hub-request"
        names += " hub-json-list hub-json-watch hub-protobuf-list hub-protobuf-watch"
        names += " path sibling line quoted admin admin-agent admin-hub"
        names += " admin-proxy"
        self.assertEqual(names.split(), list(TARGETS))


class CampaignTests(SynchronousTestCase):
    """The campaigns detect failures."""

    def test_failed_case_is_reported_with_its_bytes(self) -> None:
        """The error of a failed case contains the bytes that reproduce it."""

        def check(case: bytes) -> bool:
            assert b"evil" not in case, "no evil"
            return True

        target = Target("some", check, [b"good"], [b"evil"])
        error = self.assertRaises(CaseFailed, campaign, target, 100, 1)
        self.assertIn("AssertionError: no evil; bytes: ", str(error))
        self.assertIn(b"evil", bytes.fromhex(str(error).rpartition(" ")[2]))

    def test_seeds(self) -> None:
        """The same seed makes the same cases, another seed makes others."""

        def seen(seed: int) -> list[bytes]:
            found: list[bytes] = []

            def check(case: bytes) -> bool:
                found.append(case)
                return True

            campaign(Target("some", check, [b"start"], [b"piece"]), 20, seed)
            return found

        self.assertEqual(seen(1), seen(1))
        self.assertNotEqual(seen(1), seen(2))

    def test_leak_is_detected(self) -> None:
        """A parser that leaks a part of each case exceeds the allowed growth of memory."""
        kept: list[bytes] = []

        def check(case: bytes) -> bool:
            # This is more than the process may have freed before.
            kept.append(case * 10_000)
            return True

        outcome = campaign(Target("some", check, [b"start"], [b"piece"]), CASES, 1)
        self.assertGreater(outcome.growth, MAX_GROWTH)


class Atheris(types.ModuleType):
    """The part of atheris that :mod:`tests.fuzz.guided` uses; runs each file of the corpus once."""

    def __init__(self) -> None:
        super().__init__("atheris")
        self.flags: list[str] = []
        self.instrumented: list[str] = []
        self.tried = 0

    @contextlib.contextmanager
    def instrument_imports(self, include: list[str]) -> Iterator[None]:
        """Record what is instrumented."""
        self.instrumented += include
        yield

    def Setup(self, arguments: list[str], check: Callable[[bytes], None]) -> None:
        """Record the flags of libFuzzer, whose last argument is the corpus."""
        [_, *self.flags, self._corpus] = arguments
        self._check = check

    def Fuzz(self) -> None:
        """Check the corpus."""
        for path in Path(self._corpus).iterdir():
            self._check(path.read_bytes())
            self.tried += 1


class GuidedTests(SynchronousTestCase):
    """:mod:`tests.fuzz.guided` without atheris."""

    def setUp(self) -> None:
        """Install a fake atheris."""
        self.atheris = Atheris()
        modules = mock.patch.dict(sys.modules, {"atheris": self.atheris})
        modules.start()
        self.addCleanup(modules.stop)

    def test_starts_with_cases_of_the_target(self) -> None:
        """The corpus starts with cases of the target, imports are instrumented, limits are set."""
        corpus = self.mktemp()
        guided.main(["hello", "--cases", "10", "--seed", "3", "--corpus", corpus])
        self.assertEqual(guided.FIRST_CASES, self.atheris.tried)
        self.assertEqual(["yurttunnel"], self.atheris.instrumented)
        self.assertIn("-runs=10", self.atheris.flags)
        self.assertIn("-seed=4", self.atheris.flags)

    def test_failed_case_ends_the_run(self) -> None:
        """An error of a target ends the run; libFuzzer saves the case."""
        broken = Target("hello", lambda case: 1 // 0 == 0, [b"start"], [b"piece"])
        self.patch(sys.modules["tests.fuzz.targets"], "TARGETS", {"hello": broken})
        self.assertRaises(ZeroDivisionError, guided.main, ["hello", "--corpus", self.mktemp()])

    def test_without_atheris(self) -> None:
        """The error says which package to install."""
        sys.modules["atheris"] = None  # type: ignore[assignment] # as the import system has it
        error = self.assertRaises(SystemExit, guided.main, ["hello"])
        self.assertIn("pip install atheris", str(error.code))

    def test_a_target_that_does_not_exist(self) -> None:
        """An unknown target is an error that lists the existing ones."""
        stderr = io.StringIO()
        self.patch(sys, "stderr", stderr)
        self.assertRaises(SystemExit, guided.main, ["nothing"])
        self.assertIn("wire-server", stderr.getvalue())
