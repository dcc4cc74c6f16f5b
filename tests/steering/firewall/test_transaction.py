"""Tests of transactions, on a table in memory that applies them as the programs do."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.steering.firewall.fakes import FakeTable
from yurttunnel.ops.slices import at_once
from yurttunnel.steering.firewall import transaction as transaction_module
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.rules import MAX_RETURNS_BY_PORT, TUNNEL, rules_of
from yurttunnel.steering.firewall.saved import Saved, parse
from yurttunnel.steering.firewall.transaction import MAX_DIFFERENCES, MAX_EDITS, transaction
from yurttunnel.steering.interception import Interception, Match, Target

EDGE = frozenset({IPv4Address("192.168.7.1")})
ADDRESSES = st.integers(1, 12).map(lambda last: IPv4Address(f"10.0.0.{last}"))
TARGETS = st.builds(
    Target, st.sampled_from([None, IPv4Address("172.16.1.199")]), st.sampled_from([10263, 10264])
)
PORTS = st.dictionaries(st.sampled_from([9100, 10250, 10255]), TARGETS)
WANTED = st.builds(
    Interception,
    st.just(4),
    st.sampled_from(Match),
    st.sampled_from([frozenset(), EDGE]),
    st.frozensets(ADDRESSES),
    PORTS,
    PORTS,
)
FOREIGN_CHAINS = ("KUBE-SERVICES", "TUNNEL-PORTAL")
FOREIGN_RULES = st.sampled_from(
    ["-j KUBE-SERVICES", "-p tcp -j RETURN", '-m comment --comment "-j TUNNEL-PORT" -j RETURN']
)
OUR_CHAINS = (
    "TUNNEL-PORT",
    "TUNNEL-PORT-10250",
    "TUNNEL-PORT-9999",
    "TUNNEL-PODS",
    "TUNNEL-PORT-x",
)
OUR_RULES = st.sampled_from(
    [
        "-j TUNNEL-PORT-9999",
        "-p tcp -m tcp --dport 10250 -g TUNNEL-PORT-10250",
        '-p tcp -m comment --comment "yurttunnel server port" -j TUNNEL-PORT',
        "-d 10.0.0.1/32 -p tcp -j RETURN",
    ]
)


def changed(table, desired):
    """Change a table to the desired state; return the input."""
    saved = at_once(parse(TUNNEL.lines(table.save().encode()), TUNNEL))
    change = at_once(transaction("nat", saved, desired))
    if change.text:
        table.restore(change.text)
    return change.text


def foreign(table):
    """Return what is not ours: chains, and rules in order that do not lead to ours."""
    return {
        chain: [
            rule
            for rule in rules
            if not TUNNEL.owns(rule.rpartition(" ")[2]) or rule.split()[-2] not in ("-j", "-g")
        ]
        for chain, rules in table.chains.items()
        if not TUNNEL.owns(chain)
    }


def leading(table):
    """Return how often which of the other chains' rules lead to our chains."""
    rules = foreign(table)
    return Counter(
        (chain, rule) for chain in rules for rule in table.chains[chain] if rule not in rules[chain]
    )


@st.composite
def tables(draw):
    """Draw a table: with rules that were desired once, and any changes since."""
    table = FakeTable()
    for chain in FOREIGN_CHAINS:
        table.chains[chain] = []
    changed(table, rules_of(draw(WANTED), "S"))
    for chain in draw(st.sets(st.sampled_from(OUR_CHAINS))):
        table.chains.setdefault(chain, [])
    for chain in sorted(draw(st.sets(st.sampled_from(sorted(table.chains))))):
        rules = table.chains[chain]
        kinds = OUR_RULES if TUNNEL.owns(chain) else FOREIGN_RULES | OUR_RULES
        for rule in draw(st.lists(kinds, max_size=4)):
            rules.insert(draw(st.integers(0, len(rules))), rule)
        for _ in range(draw(st.integers(0, min(2, len(rules))))):
            del rules[draw(st.integers(0, len(rules) - 1))]
    for name in ("TUNNEL-PORT-9999", "TUNNEL-PORT-10250", "TUNNEL-PORT"):
        if any(rule.endswith(f" {name}") for rules in table.chains.values() for rule in rules):
            table.chains.setdefault(name, [])
    return table


class AnyStateTests(SynchronousTestCase):
    """From any state to any other."""

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(tables(), WANTED, st.sampled_from([0, 2, MAX_EDITS]))
    def test_any(self, table, interception, most_edits):
        """The desired rules are in place, exactly, and what is not ours is unchanged."""
        self.patch(transaction_module, "MAX_EDITS", most_edits)
        desired = rules_of(interception, "S")
        others = foreign(table)
        changed(table, desired)
        ours = {chain: tuple(rules) for chain, rules in table.chains.items() if TUNNEL.owns(chain)}
        self.assertEqual(dict(desired.chains), ours)
        self.assertEqual(others, foreign(table))
        jumps = {(chain, rule): 1 for chain, rules in desired.jumps.items() for rule in rules}
        self.assertEqual(jumps, leading(table))
        self.assertEqual("", changed(table, desired))

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(tables())
    def test_nothing(self, table):
        """If nothing is desired, nothing of ours remains."""
        others = foreign(table)
        changed(table, Rules())
        self.assertEqual(others, table.chains)


def cloud(last, ports=(10250,), target=10263):
    """Have nodes 10.0.0.1 to 10.0.0.last as cloud nodes."""
    nodes = frozenset(IPv4Address("10.0.0.0") + number for number in range(1, last + 1))
    leads = {port: Target(None, target) for port in ports}
    return rules_of(Interception(4, Match.CLOUD_RETURN, EDGE, nodes, leads), None)


class TransactionTests(SynchronousTestCase):
    """The size of changes."""

    def setUp(self):
        """Make a table with 100 nodes, and a rule of another program."""
        self.table = FakeTable()
        self.table.chains["OUTPUT"].append("-j RETURN")
        changed(self.table, cloud(100))

    def lines(self, desired):
        """Return the lines of the change."""
        return changed(self.table, desired).split("\n")[1:-2]

    def test_first(self):
        """The jump precedes the rules of others in the kernel's chain."""
        self.assertEqual(
            ["-j TUNNEL-PORT", "-j RETURN"],
            [rule[-14:].strip() for rule in self.table.chains["OUTPUT"]],
        )

    def test_one_more(self):
        """One more node is one rule, at its position."""
        (line,) = self.lines(cloud(101))
        self.assertTrue(line.startswith("-I TUNNEL-PORT-10250 102 -d 10.0.0.101/32 "), line)

    def test_one_less(self):
        """One node less is one rule."""
        (line,) = self.lines(cloud(99))
        self.assertTrue(line.startswith("-D TUNNEL-PORT-10250 -d 10.0.0.100/32 "), line)

    def test_target(self):
        """A changed target is replaced: the old one never matches first (F1)."""
        old, new = self.lines(cloud(100, target=10264))
        self.assertIn("-D TUNNEL-PORT-10250 -p tcp", old)
        self.assertIn("-I TUNNEL-PORT-10250 102 -p tcp", new)
        rules = self.table.chains["TUNNEL-PORT-10250"]
        self.assertEqual(1, sum("REDIRECT" in rule for rule in rules))

    def test_many(self):
        """If much differs in a chain, it is refilled."""
        lines = self.lines(cloud(101 + MAX_EDITS))
        self.assertEqual(":TUNNEL-PORT-10250 - [0:0]", lines[0])
        self.assertEqual(103 + MAX_EDITS, len(lines) - 1)

    def test_port_leaves(self):
        """A removed port removes its chain, in the same transaction."""
        changed(self.table, cloud(2, (10250, 9100)))
        lines = self.lines(cloud(2))
        self.assertEqual(
            [":TUNNEL-PORT-9100 - [0:0]", "-X TUNNEL-PORT-9100"], [lines[0], lines[-1]]
        )
        self.assertEqual(3, len(lines))

    def test_jump_twice(self):
        """Of two jumps one is kept."""
        self.table.chains["OUTPUT"] *= 2
        (line,) = self.lines(cloud(100))
        self.assertTrue(line.startswith("-D OUTPUT "), line)

    def test_jump_behind(self):
        """A jump that other rules precede by now stays where it is."""
        self.table.chains["OUTPUT"].reverse()
        self.assertEqual([], self.lines(cloud(100)))

    def test_differences(self):
        """The differences are reported, in a limited number of sentences."""
        lines = [b":TUNNEL-PORT-7 - [0:0]", b"-A INPUT -j TUNNEL-PORT-7"]
        table = at_once(parse(lines, TUNNEL))
        found = at_once(transaction("nat", table, cloud(1))).differences
        expected = (
            "the chain TUNNEL-PORT is missing",
            "the chain TUNNEL-PORT-10250 is missing",
            "the chain TUNNEL-PORT-7 is not wanted",
            "a rule of INPUT leads to our chains and is not wanted",
            "the jump from OUTPUT is missing",
        )
        self.assertEqual(expected, found)
        many = at_once(transaction("nat", Saved(), cloud(1, range(1, 50)))).differences
        self.assertEqual(MAX_DIFFERENCES + 1, len(many))
        self.assertEqual("and 31 more", many[-1])

    def test_shape_changes(self):
        """With too many nodes for the structure of 1.2, the other one replaces it."""
        ports = range(1, MAX_RETURNS_BY_PORT // 101 + 1)
        changed(self.table, cloud(100, ports))
        self.assertNotIn("TUNNEL-PORT-CLOUD", self.table.chains)
        changed(self.table, cloud(102, ports))
        self.assertIn("TUNNEL-PORT-CLOUD", self.table.chains)
        self.assertEqual(1, len(self.table.chains["TUNNEL-PORT-1"]))
        changed(self.table, cloud(100, ports))
        self.assertNotIn("TUNNEL-PORT-CLOUD", self.table.chains)
