"""Some thousand random cases for each reader of strangers' bytes, the same ones each time.

``python -m tests.fuzz --cases 1000000`` runs more of them, ``--seed`` others.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.campaign import CaseFailed, campaign
from tests.fuzz.cases import Target
from tests.fuzz.targets import TARGETS

CASES = 1500


class FuzzTests(SynchronousTestCase):
    """Nothing crashes, hangs, or depends on how bytes are cut."""

    def survives(self, name: str) -> None:
        """Check the cases of one target, some of which must be accepted and some not."""
        outcome = campaign(TARGETS[name], CASES, seed=7)
        self.assertTrue(0 < outcome.accepted < CASES, outcome)

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
        campaign(TARGETS["line"], CASES, seed=7)
        self.survives("quoted")

    def test_every_target_is_here(self) -> None:
        """No target is left out above."""
        names = "wire-server wire-agent hello request response chunks authority client-hello"
        names += " enrolment identifiers certificate-request certificate path sibling line quoted"
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
