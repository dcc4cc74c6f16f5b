"""Tests of the selection of the back end, and of leftovers in others."""

from __future__ import annotations

import math
from pathlib import Path

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.steering.firewall.fakes import FakePrograms
from yurttunnel.ops import slices
from yurttunnel.ops.programs import CompletedProgram
from yurttunnel.ops.slices import gather
from yurttunnel.proxy.interfaces import IRules, PartlyApplied
from yurttunnel.proxy.rules.choice import choose, remove_everything
from yurttunnel.proxy.rules.iptables.rules import IptablesRules
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.settings import BackEnd
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall import detection
from yurttunnel.steering.interfaces import VERSIONS, Applied


@implementer(IRules)
class RecordedRules:
    """Rules that record calls, and fail with ``problem`` while it is set.

    ``made`` limits them to some families.
    """

    def __init__(self, backend):
        self.backend = backend
        self.problem = self.made = None
        self.leftovers = False
        self.calls = []

    def _answer(self, call, answer):
        self.calls.append(call)
        return succeed(answer) if self.problem is None else fail(SteeringFailed(self.problem))

    def apply(self, proxied):
        """Record the call."""
        if self.made is not None:
            self.calls.append("apply")
            return fail(PartlyApplied("a family is refused", self.made))
        return self._answer("apply", Applied(("made",)))

    def remove(self, versions=VERSIONS):
        """Record the call, with the families if these are limited."""
        return self._answer(_of("remove", versions), self.leftovers)

    def generation(self):
        """Return a number of this back end."""
        return len(self.backend)

    async def find(self):
        """Set whether iptables works."""
        await self._answer("find", None)

    async def remove_elsewhere(self, versions=VERSIONS):
        """Record the call in the same way."""
        removed = ["removed the chains of iptables (legacy)"] if self.leftovers else []
        return await self._answer(_of("remove elsewhere", versions), removed)


def _of(call, versions):
    return call if sorted(versions) == list(VERSIONS) else f"{call} {sorted(versions)}"


class ChoiceTests(SynchronousTestCase):
    """``--proxy-backend``."""

    def setUp(self):
        """Make both back ends."""
        self.iptables = RecordedRules("iptables (nft)")
        self.nftables = RecordedRules("nftables")

    def choose(self, back_end, kernel_mode=False):
        """Choose, and apply once; return the back end in use."""
        rules = choose(back_end, kernel_mode, self.iptables, self.nftables)
        verifyObject(IRules, rules)
        self.successResultOf(rules.apply([]))
        return rules

    def test_auto(self):
        """iptables is used if it works."""
        rules = choose(BackEnd.AUTO, False, self.iptables, self.nftables)
        self.assertEqual(("auto", None), (rules.backend, rules.generation()))
        self.assertEqual(Applied(("made",)), self.successResultOf(rules.apply([])))
        self.assertEqual("iptables (nft)", rules.backend)
        self.assertEqual(self.iptables.generation(), rules.generation())
        self.assertEqual(["find", "apply", "remove elsewhere"], self.iptables.calls)
        self.assertEqual(["remove"], self.nftables.calls)

    def test_auto_without_iptables(self):
        """nftables is used if iptables does not work, and stays in use."""
        self.iptables.problem = "iptables is not installed"
        rules = self.choose(BackEnd.AUTO)
        self.assertEqual("nftables", rules.backend)
        self.iptables.problem = None
        self.successResultOf(rules.apply([]))
        self.assertNotIn("apply", self.iptables.calls)
        self.flushLoggedErrors()

    def test_auto_without_any(self):
        """If neither works, both reasons are reported, and both are retried."""
        self.iptables.problem, self.nftables.problem = "no iptables", "no nft"
        rules = choose(BackEnd.AUTO, False, self.iptables, self.nftables)
        error = self.failureResultOf(rules.apply([]), SteeringFailed).value
        self.assertEqual("no iptables; no nft", str(error))
        self.iptables.problem = None
        self.nftables.problem = None
        self.successResultOf(rules.apply([]))
        self.assertEqual("iptables (nft)", rules.backend)

    def test_given(self):
        """The requested back end is used, and no other."""
        self.iptables.problem = "no iptables"
        rules = choose(BackEnd.IPTABLES, False, self.iptables, self.nftables)
        self.failureResultOf(rules.apply([]), SteeringFailed)
        self.assertEqual([], self.nftables.calls)
        self.assertEqual("nftables", self.choose(BackEnd.NFTABLES).backend)

    def test_kernel_mode(self):
        """Kernel mode always uses nftables."""
        self.assertEqual("nftables", self.choose(BackEnd.AUTO, kernel_mode=True).backend)
        self.assertEqual(["remove"], self.iptables.calls)

    def test_none(self):
        """The kernel is not changed."""
        self.assertIsInstance(self.choose(BackEnd.NONE), NoRules)
        self.assertEqual(([], []), (self.iptables.calls, self.nftables.calls))

    def test_leftovers(self):
        """Leftovers of a previous process are removed once, when there are rules."""
        self.nftables.leftovers = True
        rules = choose(BackEnd.IPTABLES, False, self.iptables, self.nftables)
        self.iptables.problem = "the lock is held"
        self.failureResultOf(rules.apply([]), SteeringFailed)
        self.assertEqual([], self.nftables.calls)
        self.iptables.problem = None
        self.successResultOf(rules.apply([]))
        self.successResultOf(rules.apply([]))
        self.assertEqual(["remove"], self.nftables.calls)

    def test_leftovers_of_one_family(self):
        """If the rules of another family fail, leftovers of this one are removed all the same."""
        rules = choose(BackEnd.IPTABLES, False, self.iptables, self.nftables)
        self.iptables.made = {4}
        for _ in range(2):
            self.failureResultOf(rules.apply([]), PartlyApplied)
        self.assertEqual(["remove [4]"], self.nftables.calls)
        self.iptables.made = None
        for _ in range(2):
            self.successResultOf(rules.apply([]))
        self.assertEqual(["remove [4]", "remove [6]"], self.nftables.calls)
        self.assertEqual(
            ["remove elsewhere [4]", "remove elsewhere [6]"],
            [each for each in self.iptables.calls if each != "apply"],
        )

    def test_leftovers_of_all_kinds(self):
        """The log says what each back end has left."""
        self.iptables.leftovers = self.nftables.leftovers = True
        with capturedLogs() as events:
            self.choose(BackEnd.IPTABLES)
        self.assertEqual(
            [
                "Left by a previous process: removed the chains of iptables (legacy)",
                "Left by a previous process: removed the rules of nftables",
            ],
            [formatEvent(each) for each in events],
        )

    def test_leftovers_that_cannot_be_removed(self):
        """The removal is retried each time, as they may still redirect clients, and logged once."""
        self.nftables.leftovers = True
        self.nftables.problem = "the lock is held"
        rules = choose(BackEnd.IPTABLES, False, self.iptables, self.nftables)
        with capturedLogs() as events:
            for _ in range(2):
                self.successResultOf(rules.apply([]))
            self.nftables.problem = None
            for _ in range(2):
                self.successResultOf(rules.apply([]))
        self.assertEqual(["remove"] * 3, self.nftables.calls)
        lines = [formatEvent(each) for each in events]
        self.assertEqual(2, len(lines), lines)
        self.assertIn("the lock is held; retrying", lines[0])
        self.assertIn("removed the rules of nftables", lines[1])

    def test_remove(self):
        """The rules of all back ends are removed at the end."""
        rules = self.choose(BackEnd.IPTABLES)
        self.assertFalse(self.successResultOf(rules.remove()))
        self.nftables.leftovers = True
        self.assertTrue(self.successResultOf(rules.remove()))
        self.assertEqual(["remove"] * 3, self.nftables.calls)


class CleanupTests(SynchronousTestCase):
    """What ``--cleanup`` removes."""

    def setUp(self):
        """Do all work in one turn: a collection of garbage might add some."""
        self.patch(slices, "WORK_SECONDS", math.inf)

    def removed(self, *of):
        """Remove; return what is done at once."""
        return Deferred.fromCoroutine(remove_everything(of))

    def test_sentences(self):
        """It reports what there was, and what could not be removed."""
        one, two = RecordedRules("iptables"), RecordedRules("nftables")
        self.assertEqual([], self.successResultOf(self.removed(one, two)))
        one.leftovers = True
        self.assertEqual(
            ["removed the rules of iptables"], self.successResultOf(self.removed(one, two))
        )
        two.problem = "it may not"
        error = self.failureResultOf(self.removed(one, two), SteeringFailed).value
        self.assertEqual("it may not (but removed the rules of iptables)", str(error))

    def test_not_installed(self):
        """Programs that are not installed have created no rules, and that is no failure."""
        programs = FakePrograms()
        self.patch(detection, "PROC_NET", Path(self.mktemp()))
        kinds = (
            IptablesRules(Clock(), programs, {}.get),
            Nftables(Clock(), programs, lambda proxied: gather(())),
        )
        self.assertEqual([], self.successResultOf(self.removed(*kinds)))

    def cleaned_of_nftables(self, said, generation=None):
        """Remove nftables rules when the program ends with an error, and the kernel counts changes
        up to ``generation``, or not at all.
        """
        programs = FakePrograms()
        programs.programs["nft"] = lambda arguments, given: CompletedProgram(1, b"", said)
        rules = Nftables(Clock(), programs, lambda proxied: gather(()))
        self.patch(rules, "generation", lambda: generation)
        return self.removed(rules)

    def test_not_in_the_kernel(self):
        """A kernel without nftables has no such rules, whatever the program's error is."""
        for said in (
            "netlink: Error: cache initialization failed: Invalid argument",
            "netlink.c:62: Unable to initialize Netlink socket: Protocol not supported",
            "netlink: Error: cache initialization failed: Operation not supported",
        ):
            self.assertEqual([], self.successResultOf(self.cleaned_of_nftables(said)))
            # On a kernel with nftables the error is a failure.
            failure = self.failureResultOf(self.cleaned_of_nftables(said, 7), SteeringFailed)
            self.assertIn(said, str(failure.value))

    def test_not_permitted(self):
        """Without permission it is unknown whether there are rules."""
        said = "netlink: Error: cache initialization failed: Operation not permitted"
        failure = self.failureResultOf(self.cleaned_of_nftables(said), SteeringFailed)
        self.assertIn("NET_ADMIN", str(failure.value))
