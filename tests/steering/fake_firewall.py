"""A firewall in memory."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from zope.interface import implementer

from yurttunnel.steering.failures import SetsRefused
from yurttunnel.steering.interception import Match
from yurttunnel.steering.interfaces import Applied, IFirewall


@implementer(IFirewall)
class FakeFirewall:
    """The rules of one address family, which may refer to ``sets``, a ``FakeAddressSets``.

    ``rules`` are the current ones by port; a test may change them behind the manager's back. While
    ``failure`` is not ``None``, every call fails with it; with ``refuses_sets``, calls with a set
    do. With ``late_failure`` rules are created, and the call fails all the same. While ``hold`` is
    a ``Deferred``, calls wait for it. ``calls`` records the calls, and may be shared with other
    fakes.
    """

    backend = "nft"

    def __init__(self, version, sets, calls):
        self.version = version
        self.sets = sets
        self.calls = calls
        self.rules = {}
        self.failure = None
        self.late_failure = None
        self.refuses_sets = False
        self.hold = None
        self.changes = 0
        self.counts_changes = True

    def generation(self):
        """See :class:`IFirewall`; a test that changes ``rules`` adds to ``changes``."""
        return self.changes if self.counts_changes else None

    async def apply(self, desired, set_name):
        """See :class:`IFirewall`."""
        await self._called("apply")
        if set_name is not None and set_name not in self.sets.sets:
            raise AssertionError(f"there is no set {set_name}")
        if set_name is not None and self.refuses_sets:
            raise SetsRefused("iptables-restore: Can't open socket to ipset")
        rules = self.made_of(desired, set_name)
        former, self.rules = self.rules, rules
        self.changes += rules != former
        self._hold_sets()
        if self.late_failure is not None:
            raise self.late_failure
        differences = [
            f"the rules of port {port}"
            for port in sorted(former.keys() | rules.keys())
            if former.get(port) != rules.get(port)
        ]
        return Applied(tuple(differences), frozenset(former))

    async def remove(self):
        """See :class:`IFirewall`."""
        await self._called("remove")
        former, self.rules = self.rules, {}
        self.changes += bool(former)
        self._hold_sets()
        return bool(former)

    async def _called(self, what):
        self.calls.append((what, self.version))
        if self.hold is not None:
            hold = Deferred()
            self.hold.chainDeferred(hold)
            await hold
        if self.failure is not None:
            raise self.failure

    def _hold_sets(self):
        self.sets.busy = {name for name in self.sets.busy if not name.endswith(str(self.version))}
        self.sets.busy |= {rule[0] for rule in self.rules.values() if isinstance(rule[0], str)}

    def made_of(self, desired, set_name):
        """Return the desired rules by port: the match and the target."""
        if desired.is_empty:
            return {}
        match = set_name if desired.match is Match.EDGE_SET else desired.cloud
        return {
            port: (match, desired.ports.get(port), desired.pod_ports.get(port))
            for port in desired.all_ports()
        }
