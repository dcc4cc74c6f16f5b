"""The seams of steering: the kernel's firewall, its sets of addresses, its table of connections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.steering.interception import Address, Interception, Target

VERSIONS = (4, 6)
"""Of IP: the families that there may be rules of."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What it took to make the rules those that are wanted.

    ``differences`` says in one sentence each what was not as wanted (a bounded number of them);
    there are none when nothing was changed. ``former_ports`` are those that were intercepted
    before, whoever had made the rules.
    """

    differences: tuple[str, ...] = ()
    former_ports: frozenset[int] = frozenset()


class IFirewall(Interface):
    """The rules of one family of addresses, all of them below chains of our own.

    Calls are made one after the other. Each takes as many processes as it says at most, has a
    deadline, and fails with :class:`SteeringFailed`.
    """

    version = Attribute("`int`: 4 or 6.")
    backend = Attribute("`str`: which of the kernel's two firewalls, ``nft`` or ``legacy``.")

    async def apply(desired: Interception, set_name: str | None) -> Applied:
        """Make the rules those that are wanted: read them, and change them at once if need be.

        One process reads. Where anything differs, leftovers included, one more changes it, in one
        transaction: at no moment is something missing that was there and is wanted. ``set_name``
        is the set of addresses that ``Match.EDGE_SET`` refers to; it exists. Fails with
        :class:`SetsRefused` where there are no rules with sets.
        """

    async def remove() -> bool:
        """Remove everything that is ours; says whether there was anything.

        One process removes what is known to be there since the last call; nothing is read then,
        unless that is refused, because others have changed it.
        """

    def generation() -> int | None:
        """Return a number that is another one after each change of the kernel's rules, by anybody.

        ``None`` where the kernel does not count them. It costs next to nothing.
        """


@dataclass(frozen=True, slots=True)
class Firewalls:
    """What was found on this machine, by the version of IP.

    ``missing`` says for each version that has no firewall why, and what to do.
    """

    found: Mapping[int, IFirewall]
    missing: Mapping[int, str]


class IAddressSets(Interface):
    """Sets of addresses in the kernel (ipset, type ``hash:ip``), by name."""

    def supported() -> Deferred[bool]:
        """Return whether the kernel has such sets, and rules that refer to them.

        Fails with :class:`SteeringFailed` where the kernel cannot be asked.
        """

    def put(name: str, version: int, addresses: Collection[Address]) -> Deferred[bool]:
        """Make the set that of ``addresses``, and make it first where there is none.

        At no moment is an address missing that was in it and is wanted. Says whether anything had
        to be changed. Fails with :class:`SteeringFailed`.
        """

    def remove(name: str) -> Deferred[bool]:
        """Remove the set, to which no rule refers any more; says whether there was one."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A TCP connection that the kernel tracks.

    It was meant for ``destination`` and ``port``, and is answered by ``answers``: another address
    or port than that when it has been led elsewhere. ``local`` says that this machine has begun
    it (its source is an address of this machine), and ``to_self`` that it was meant for an address
    of this machine.
    """

    destination: Address
    port: int
    answers: Target
    local: bool
    to_self: bool = False


class IFlows(Interface):
    """The connections that the kernel tracks (conntrack)."""

    def cut(
        version: int, ports: Collection[int], is_wrong: Callable[[Flow], bool]
    ) -> Deferred[int]:
        """End each flow to one of ``ports`` that ``is_wrong``; say how many they were.

        Where a program of this machine has begun it, that is told at once. Others are forgotten:
        with the next packet of who has begun it such a connection is judged by the rules anew, and
        then reset by whoever it reaches. Fails with :class:`SteeringFailed`.
        """
