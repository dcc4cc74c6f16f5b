"""Tests of changes of iptables chains from any state to any other, on tables in memory."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.steering.firewall.fakes import FakeTable
from yurttunnel.ops.slices import at_once
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.rules.iptables.chains import PROXY
from yurttunnel.proxy.rules.iptables.portals import PortalRules
from yurttunnel.proxy.state.virtual_services import (
    Key,
    NoEndpointsAction,
    Portal,
    PortalKind,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.saved import normalized, parse
from yurttunnel.steering.firewall.transaction import transaction

HOST = ip_address("172.16.1.9")
FOREIGN = ("-p tcp -j RETURN", "-m comment --comment KUBE-PORTALS-HOST -j RETURN")
OWN = ("-p udp -j RETURN", "-p tcp -j KUBE-PORTALS-HOST", "-j KUBE-PORTALS-HOST-OLD")

PORTALS = st.one_of(
    st.builds(Portal, st.just(PortalKind.NODE_PORT), st.none(), st.integers(30000, 30002)),
    st.builds(
        Portal,
        st.sampled_from([each for each in PortalKind if each is not PortalKind.NODE_PORT]),
        st.sampled_from([ip_address("10.96.0.1"), ip_address("203.0.113.1")]),
        st.sampled_from([80, 443]),
        st.sampled_from([None, (ip_network("192.0.2.0/24"), ip_network("fd00::/8"))]),
    ),
)
SERVICES = st.builds(
    lambda name, protocol, scope, portals, nobody, port: ProxiedService(
        VirtualService(
            Key(ServicePortName("n", name, ""), 4, protocol, scope),
            tuple(portals),
            (),
            no_endpoints_action=nobody,
        ),
        port,
    ),
    st.sampled_from("abc"),
    st.sampled_from(Protocol),
    st.sampled_from(Scope),
    st.lists(PORTALS, max_size=4, unique=True),
    st.sampled_from(NoEndpointsAction),
    st.sampled_from([None, 4000, 4001]),
)
PLACED = st.lists(SERVICES, max_size=6, unique_by=lambda proxied: proxied.service.key)
TABLES = st.sampled_from(PROXY.tables)


def rules_of(table, proxied):
    """Return the desired rules of one table."""
    return at_once(PortalRules(4).rules(proxied, HOST))[table]


def changed(table, desired):
    """Change a table to the desired state; return the input."""
    saved = at_once(parse(PROXY.lines(table.save().encode()), PROXY))
    text = at_once(transaction(table.name, saved, desired)).text
    if text:
        table.restore(text)
    return text


def leads(rule):
    """Return whether a rule of a kernel's chain leads to our chains."""
    return PROXY.owns(rule.rpartition(" ")[2])


def others(table):
    """Return the rules of others, in order."""
    return {
        chain: [rule for rule in rules if not leads(rule)]
        for chain, rules in table.chains.items()
        if not PROXY.owns(chain)
    }


def jumps(table):
    """Return the jumps to our chains, in order, as options."""
    found = {
        chain: [normalized(rule) for rule in rules if leads(rule)]
        for chain, rules in table.chains.items()
        if not PROXY.owns(chain)
    }
    return {chain: some for chain, some in found.items() if some}


def wanted_jumps(rules):
    """Return the same for the desired state."""
    chains = rules.jumps.keys() | rules.last_jumps.keys()
    return {
        chain: [
            normalized(rule)
            for rule in (*rules.jumps.get(chain, ()), *rules.last_jumps.get(chain, ()))
        ]
        for chain in chains
    }


@st.composite
def damaged(draw, name):
    """Draw a correct table, and a damaged version of it."""
    table = FakeTable(name)
    for chain in ("INPUT", "OUTPUT", "PREROUTING"):
        table.chains[chain] += draw(st.lists(st.sampled_from(FOREIGN), max_size=2))
    if draw(st.booleans()):
        former = rules_of(name, draw(PLACED))
        changed(table, former)
        own = [rule for rules in former.jumps.values() for rule in rules]
        own += [rule for rules in former.last_jumps.values() for rule in rules]
    else:
        own = []
    for chain in sorted(draw(st.sets(st.sampled_from(sorted(table.chains))))):
        rules = table.chains[chain]
        kinds = list(OWN) if PROXY.owns(chain) else [*FOREIGN, *OWN, *own]
        for rule in draw(st.lists(st.sampled_from(kinds), max_size=3)):
            rules.insert(draw(st.integers(0, len(rules))), rule)
        for _ in range(draw(st.integers(0, min(2, len(rules))))):
            del rules[draw(st.integers(0, len(rules) - 1))]
    for target in ("KUBE-PORTALS-HOST", "KUBE-PORTALS-HOST-OLD"):
        table.chains.setdefault(target, [])
    return table


class AnyStateTests(SynchronousTestCase):
    """Any found state, changed by the transaction, is the desired one."""

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data(), TABLES, PLACED)
    def test_any(self, data, name, proxied):
        """Our chains are as desired, our jumps in order, and everything else is unchanged."""
        table = data.draw(damaged(name))
        before = others(table)
        desired = rules_of(name, proxied)
        changed(table, desired)
        ours = {chain: tuple(some) for chain, some in table.chains.items() if PROXY.owns(chain)}
        self.assertEqual(dict(desired.chains), ours)
        self.assertEqual(before, others(table))
        self.assertEqual(wanted_jumps(desired), jumps(table))
        self.assertEqual("", changed(table, desired))

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data(), TABLES)
    def test_nothing(self, data, name):
        """If nothing is desired, nothing of ours remains."""
        table = data.draw(damaged(name))
        before = others(table)
        changed(table, Rules())
        self.assertEqual(before, table.chains)

    @settings(deadline=None)
    @given(PLACED)
    def test_places(self, proxied):
        """In a table with rules of others, portals come first, and node ports last."""
        table = FakeTable("nat")
        for chain in ("OUTPUT", "PREROUTING"):
            table.chains[chain] += FOREIGN
        changed(table, rules_of("nat", proxied))
        for chain in ("OUTPUT", "PREROUTING"):
            first, *between, last = table.chains[chain]
            self.assertIn("-j KUBE-PORTALS-", first)
            self.assertEqual(list(FOREIGN), between)
            self.assertIn("-j KUBE-NODEPORT-", last)
