"""The interfaces of steering: the kernel's firewall, its sets of addresses, its conntrack table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.steering.interception import Address, Interception, Target

VERSIONS = (4, 6)
"""The versions of IP for which there may be rules."""


class Applied(NamedTuple):
    """The changes that an update of the rules made.

    ``differences`` has a sentence for each difference (a bounded number of them), and is empty if
    nothing was changed. ``former_ports`` are the ports that were intercepted before, by the rules
    of any process.
    """

    differences: tuple[str, ...] = ()
    former_ports: frozenset[int] = frozenset()


class IFirewall(Interface):
    """The rules of one address family, all of them in chains of our own.

    Calls are made one after the other. Each runs at most the documented number of processes, has a
    timeout, and fails with :class:`SteeringFailed`.
    """

    version = Attribute("`int`: 4 or 6.")
    backend = Attribute("`str`: which of the kernel's two firewalls, ``nft`` or ``legacy``.")

    async def apply(desired: Interception, set_name: str | None) -> Applied:
        """Update the rules to the desired ones: read them, and change them if they differ.

        One process reads. If anything differs, including leftovers, another one changes it in one
        transaction, so that rules that stay are in force all the time. ``set_name`` is the set of
        addresses that ``Match.EDGE_SET`` refers to; it exists. Fails with :class:`SetsRefused` if
        rules with sets are not supported.
        """

    async def remove() -> bool:
        """Remove everything that is ours; return whether there was anything.

        One process removes the rules that the last call has left, without reading them, unless that
        fails because other programs have changed them.
        """

    def generation() -> int | None:
        """Return a number that changes with each change of the kernel's rules, by any program.

        Return ``None`` if the kernel does not count them. This call is cheap.
        """


class Firewalls(NamedTuple):
    """The firewalls of this machine, by the version of IP.

    ``missing`` has, for each version without a firewall, the reason and how to fix it.
    """

    found: Mapping[int, IFirewall]
    missing: Mapping[int, str]


class IAddressSets(Interface):
    """Sets of addresses in the kernel (ipset, type ``hash:ip``), by name."""

    def supported() -> Deferred[bool]:
        """Return whether the kernel has such sets, and rules that refer to them.

        Fails with :class:`SteeringFailed` if the kernel cannot be queried.
        """

    def put(name: str, version: int, addresses: Collection[Address]) -> Deferred[bool]:
        """Change the content of the set to ``addresses``; create the set if it does not exist.

        Addresses that stay are in the set all the time. Return whether anything was changed. Fails
        with :class:`SteeringFailed`.
        """

    def remove(name: str) -> Deferred[bool]:
        """Remove the set, to which no rule refers any more; return whether it existed."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A TCP connection that the kernel tracks.

    Its original destination is ``destination`` and ``port``. ``responder`` is the end that answers;
    it differs if the connection has been redirected. ``local`` means that this machine opened it
    (its source is an address of this machine), and ``to_self`` that its original destination was an
    address of this machine.
    """

    destination: Address
    port: int
    responder: Target
    local: bool
    to_self: bool = False


class IFlows(Interface):
    """The connections that the kernel tracks (conntrack)."""

    def cut(
        version: int, ports: Collection[int], is_wrong: Callable[[Flow], bool]
    ) -> Deferred[int]:
        """End each flow to one of ``ports`` for which ``is_wrong`` is true; return their number.

        A program of this machine that has opened one is notified at once. The entries of others are
        deleted: with the next packet from the client, the rules apply to such a connection again,
        and whatever it then reaches resets it. Fails with :class:`SteeringFailed`.
        """
