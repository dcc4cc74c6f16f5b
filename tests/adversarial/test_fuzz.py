"""Some thousand random cases for each reader of strangers' bytes, the same ones each time.

``python -m tests.fuzz --cases 1000000`` runs more of them, ``--seed`` others.
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

MOST_GROWTH = 4 * 2**20
"""Bytes by which memory may grow in them: 3 KiB a case. It is half a megabyte at most."""


class FuzzTests(SynchronousTestCase):
    """Nothing crashes, hangs, or depends on how bytes are cut."""

    def survives(self, name: str) -> None:
        """Check the cases of one target, some of which must be accepted and some not."""
        outcome = self.run_through(name)
        self.assertTrue(0 < outcome.accepted < CASES, outcome)

    def run_through(self, name: str) -> Outcome:
        """Check the cases of one target, which must leave nothing behind."""
        outcome = campaign(TARGETS[name], CASES, seed=7)
        self.assertLess(outcome.growth, MOST_GROWTH, outcome)
        return outcome

    def test_sessions(self) -> None:
        """Each stream of a session is given its own bytes, within the session's memory."""
        self.survives("wire-server")
        self.survives("wire-agent")

    def test_first_frames(self) -> None:
        """A HELLO is read as it was written, or refused."""
        self.survives("hello")

    def test_requests(self) -> None:
        """What is sent on is the request that was read."""
        self.survives("request")

    def test_responses(self) -> None:
        """What is sent on is the response that was read."""
        self.survives("response")

    def test_chunked_bodies(self) -> None:
        """A body is what RFC 9112 makes of its chunks, or refused."""
        self.survives("chunks")

    def test_authorities(self) -> None:
        """A destination has no character that a host has not."""
        self.survives("authority")

    def test_client_hellos(self) -> None:
        """The name in a ClientHello does not depend on how it is cut."""
        self.survives("client-hello")

    def test_enrolments(self) -> None:
        """A request for enrolment, with its names and its key, is understood or refused."""
        self.survives("enrolment")
        self.survives("identifiers")
        self.survives("certificate-request")

    def test_certificates(self) -> None:
        """A certificate names a node by the rules, or nobody."""
        self.survives("certificate")

    def test_siblings(self) -> None:
        """A line in a sibling's list of nodes is read as it was written, or refused."""
        self.survives("sibling")

    def test_paths(self) -> None:
        """What the logs tell of a request's path is plain words, and of the pod that it is for."""
        self.survives("path")

    def test_lines(self) -> None:
        """What strangers have sent makes no line of a log, and no secret is quoted."""
        self.run_through("line")
        self.survives("quoted")

    def test_requests_of_the_hub(self) -> None:
        """What is asked of the hub has names that are names, or is refused."""
        self.survives("hub-request")

    def test_lists_and_watches(self) -> None:
        """What the API answers through the hub is cut alike, or refused."""
        self.survives("hub-json-list")
        self.survives("hub-json-watch")
        self.survives("hub-protobuf-list")
        self.survives("hub-protobuf-watch")

    def test_requests_of_the_command(self) -> None:
        """What is asked of a program's socket is answered, and tells no secret."""
        self.survives("admin")
        self.survives("admin-agent")
        self.survives("admin-hub")
        self.survives("admin-proxy")

    def test_every_target_is_here(self) -> None:
        """No target is left out above."""
        names = "wire-server wire-agent hello request response chunks authority client-hello"
        names += " enrolment identifiers certificate-request certificate hub-request"
        names += " hub-json-list hub-json-watch hub-protobuf-list hub-protobuf-watch"
        names += " path sibling line quoted admin admin-agent admin-hub"
        names += " admin-proxy"
        self.assertEqual(names.split(), list(TARGETS))


class CampaignTests(SynchronousTestCase):
    """What the campaigns themselves are worth."""

    def test_a_broken_promise_is_told_with_its_bytes(self) -> None:
        """The case that fails can be had again from the text."""

        def check(case: bytes) -> bool:
            assert b"evil" not in case, "no evil"
            return True

        target = Target("some", check, [b"good"], [b"evil"])
        error = self.assertRaises(CaseFailed, campaign, target, 100, 1)
        self.assertIn("AssertionError: no evil; bytes: ", str(error))
        self.assertIn(b"evil", bytes.fromhex(str(error).rpartition(" ")[2]))

    def test_seeds(self) -> None:
        """The same seed gives the same cases, another one others."""

        def seen(seed: int) -> list[bytes]:
            found: list[bytes] = []

            def check(case: bytes) -> bool:
                found.append(case)
                return True

            campaign(Target("some", check, [b"start"], [b"piece"]), 20, seed)
            return found

        self.assertEqual(seen(1), seen(1))
        self.assertNotEqual(seen(1), seen(2))

    def test_what_stays_is_seen(self) -> None:
        """A reader that keeps something of each case makes the memory grow by more than allowed."""
        kept: list[bytes] = []

        def check(case: bytes) -> bool:
            # More than what this process may have had before and given back.
            kept.append(case * 10_000)
            return True

        outcome = campaign(Target("some", check, [b"start"], [b"piece"]), CASES, 1)
        self.assertGreater(outcome.growth, MOST_GROWTH)


class Atheris(types.ModuleType):
    """What :mod:`tests.fuzz.guided` uses of atheris, which tries each file of the corpus once."""

    def __init__(self) -> None:
        super().__init__("atheris")
        self.flags: list[str] = []
        self.instrumented: list[str] = []
        self.tried = 0

    @contextlib.contextmanager
    def instrument_imports(self, include: list[str]) -> Iterator[None]:
        """Note what is instrumented."""
        self.instrumented += include
        yield

    def Setup(self, arguments: list[str], check: Callable[[bytes], None]) -> None:
        """Take the flags of libFuzzer, behind which is the corpus."""
        [_, *self.flags, self._corpus] = arguments
        self._check = check

    def Fuzz(self) -> None:
        """Check the corpus."""
        for path in Path(self._corpus).iterdir():
            self._check(path.read_bytes())
            self.tried += 1


class GuidedTests(SynchronousTestCase):
    """:mod:`tests.fuzz.guided`, as far as it goes without atheris."""

    def setUp(self) -> None:
        """Put a stand-in in its place."""
        self.atheris = Atheris()
        modules = mock.patch.dict(sys.modules, {"atheris": self.atheris})
        modules.start()
        self.addCleanup(modules.stop)

    def test_it_begins_with_the_cases_of_the_target(self) -> None:
        """The corpus is made of them, what is imported is instrumented, and the bounds are set."""
        corpus = self.mktemp()
        guided.main(["hello", "--cases", "10", "--seed", "3", "--corpus", corpus])
        self.assertEqual(guided.FIRST_CASES, self.atheris.tried)
        self.assertEqual(["yurttunnel"], self.atheris.instrumented)
        self.assertIn("-runs=10", self.atheris.flags)
        self.assertIn("-seed=4", self.atheris.flags)

    def test_a_broken_promise_gets_out(self) -> None:
        """What a target complains of ends the run; libFuzzer keeps the case."""
        broken = Target("hello", lambda case: 1 // 0 == 0, [b"start"], [b"piece"])
        self.patch(sys.modules["tests.fuzz.targets"], "TARGETS", {"hello": broken})
        self.assertRaises(ZeroDivisionError, guided.main, ["hello", "--corpus", self.mktemp()])

    def test_without_atheris(self) -> None:
        """It says what to install."""
        sys.modules["atheris"] = None  # type: ignore[assignment] # as the import system has it
        error = self.assertRaises(SystemExit, guided.main, ["hello"])
        self.assertIn("pip install atheris", str(error.code))

    def test_a_target_that_does_not_exist(self) -> None:
        """It is an error, with the names of those that do."""
        told = io.StringIO()
        self.patch(sys, "stderr", told)
        self.assertRaises(SystemExit, guided.main, ["nothing"])
        self.assertIn("wire-server", told.getvalue())
