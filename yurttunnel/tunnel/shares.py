"""Shares of the streams that there is room for: nobody who opens streams starves the others.

What there is room for is bounded, in each session and, by the memory for streams, in each process.
Each *entry* by which callers come (a forward, an endpoint for CONNECT, the pass-through, the ports
for requests to kubelets) may hold twice as much as it leaves free, so two thirds when it is alone,
350 of 875 each when there are two; and each caller of an entry sixteen times what it leaves free
of that. So whoever comes anew finds room, without a fixed part for those who may never come.
This is the dynamic threshold of buffers that ports of a switch share (Choudhury and Hahne, "Dynamic
Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6,
1998). An eighth is kept for what goes to kubelets, half of that whatever entry it comes by; the
ports for requests to kubelets may hold that many beside their share of the rest. Of the memory,
what peers have not acknowledged leaves that eighth alone, too.
"""

from __future__ import annotations

import enum
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address, ip_network
from typing import Final, NamedTuple

from yurttunnel.tunnel.kubelet_ports import KUBELET_PORTS
from yurttunnel.wire.credit import RESERVE

ENTRY: Final = 2
CALLER: Final = 16
KUBELET_CALLER: Final = 1
"""How many times as much an entry, and a caller of it, may hold as it leaves free.

A caller of the ports for requests to kubelets has less, since what it leaves is also for short
requests, whose connections are everybody's.
"""

CACHED: Final = 4096
"""Addresses, and flags and callers, whose forms are kept: they come with each dial."""


class Kind(enum.StrEnum):
    """By which kind of entry a stream is wanted; the values are those of a metric's label."""

    FORWARD = "forward"
    CONNECT = "connect"
    PASSTHROUGH = "passthrough"
    KUBELETS = "kubelets"
    """The ports for requests to kubelets, with the connections that are kept for them."""
    OTHER = "other"
    """The server's own, which have no bound but that of all."""


class Share(enum.StrEnum):
    """What is used up; the values are those of a metric's label."""

    CALLER = "caller"
    ENTRY = "entry"
    ALL = "all"


_KINDS = tuple(Kind)
_ENTRY_BITS, _CALLER_BITS = 21, 48

_SENTENCES = {
    Share.CALLER: (
        "this caller has {callers} streams {where} by this entry, its share of {most}: close some,"
        " or use connections again"
    ),
    Share.ENTRY: (
        "the callers of this entry have {entries} streams {where}, its share of {most}: close"
        " some, or use connections again"
    ),
    Share.ALL: "{used} streams are open {where}, of {most}: close some, or try again later",
}
_NO_MEMORY = (
    "there is no memory for another stream {where} beside the {used} that are open: have those read"
    " what waits for them, or try again later"
)


class Holder(NamedTuple):
    """Who opens a stream: ``entry`` is one of its kind, ``caller`` one who comes by it.

    They are digests of the flag (21 bits) and of the caller's address (48 bits), so that a server
    that passes a stream on tells them in twelve characters. ``to_kubelet`` tells that the stream
    goes to a kubelet, which each session makes out by itself.
    """

    kind: Kind
    entry: int = 0
    caller: int = 0
    to_kubelet: bool = False

    @classmethod
    def of(cls, kind: Kind, flag: str, caller: str) -> Holder:
        """Make the holder for a caller of the entry that ``flag`` asks for."""
        return cls(kind, _digest(flag, _ENTRY_BITS), _digest(caller, _CALLER_BITS))

    def reaching(self, port: int) -> Holder:
        """Return the same for a stream to ``port``."""
        leads_there = self.kind in (Kind.KUBELETS, Kind.PASSTHROUGH) or port in KUBELET_PORTS
        return self if leads_there is self.to_kubelet else Holder(*self[:3], leads_there)

    def __str__(self) -> str:
        """Write it as :meth:`parse` takes it: URL-safe base64 of nine bytes (RFC 4648)."""
        number = (_KINDS.index(self.kind) << _ENTRY_BITS | self.entry) << _CALLER_BITS | self.caller
        return urlsafe_b64encode(number.to_bytes(9, "big")).decode()

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Read what another server has written; raises ``ValueError`` for anything else."""
        number = int.from_bytes(urlsafe_b64decode(text), "big")
        kind, digests = divmod(number, 1 << _ENTRY_BITS + _CALLER_BITS)
        if kind >= len(_KINDS):
            raise ValueError(f"{text!r} names no kind of entry")
        return cls(_KINDS[kind], *divmod(digests, 1 << _CALLER_BITS))


OTHER: Final = Holder(Kind.OTHER)
"""The server itself."""

FOR_KUBELETS: Final = Holder(Kind.KUBELETS, to_kubelet=True)
"""The ports for requests to kubelets: connections that are shared by all callers."""


def for_kubelets(caller: object) -> Holder:
    """Return the holder of a connection to a kubelet for ``caller``; ``None`` is everybody."""
    if caller is None:
        return FOR_KUBELETS
    return FOR_KUBELETS._replace(caller=_digest(str(caller), _CALLER_BITS))


@lru_cache(CACHED)
def caller_at(host: str) -> str:
    """Return what callers at an address count as: one, and so do all of an IPv6 /64 (RFC 7421)."""
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((int(address), 64), strict=False))


class ShareUsedUp(Exception):
    """There is no stream for a holder; the text says whose share is used up."""

    def __init__(self, share: Share, text: str) -> None:
        super().__init__(text)
        self.share = share


class Shares:
    """Who holds how many of the streams ``where``, of which there may be ``most``.

    ``room()`` is how many more there is room for. All are also streams of ``within``, where these
    are a part of others. ``held`` counts the streams of each kind, ``used`` all of them.
    """

    def __init__(
        self, where: str, most: int, room: Callable[[], int], within: Shares | None = None
    ) -> None:
        self.held: Counter[Kind] = Counter()
        self.used = 0
        self._where = where
        self._most = most
        self._room = room
        # These and all that they are a part of; one loop over them, since each dial comes here.
        self._all: tuple[Shares, ...] = (self,) if within is None else (self, *within._all)
        self._to_kubelets = 0
        # Plain dictionaries: a counter calls a function for each key that it has not.
        self._entries: dict[tuple[Kind, int], int] = {}
        self._callers: dict[tuple[Kind, int, int], int] = {}

    def check(self, holder: Holder) -> None:
        """Raise :class:`ShareUsedUp` if ``holder`` is to have no more."""
        for each in self._all:
            share = each._used_up(holder)
            if share is not None:
                raise ShareUsedUp(share, each._why(share, holder))

    def take(self, holder: Holder) -> None:
        """Count a stream of ``holder``."""
        entry, caller = holder[:2], holder[:3]
        for each in self._all:
            each.used += 1
            each.held[holder.kind] += 1
            each._to_kubelets += holder.to_kubelet
            each._entries[entry] = each._entries.get(entry, 0) + 1
            each._callers[caller] = each._callers.get(caller, 0) + 1

    def give_back(self, holder: Holder) -> None:
        """Count it no more."""
        for each in self._all:
            each.give_back_here(holder)

    def give_back_outside(self, holder: Holder) -> None:
        """Count it no more in what these are a part of; :meth:`give_back_here` comes later."""
        for each in self._all[1:]:
            each.give_back_here(holder)

    def give_back_here(self, holder: Holder) -> None:
        """Count it no more in these alone."""
        entry, caller = holder[:2], holder[:3]
        self.used -= 1
        self.held[holder.kind] -= 1
        self._to_kubelets -= holder.to_kubelet
        entries, callers = self._entries, self._callers
        entries[entry] -= 1
        if not entries[entry]:
            del entries[entry]
        callers[caller] -= 1
        if not callers[caller]:
            del callers[caller]

    def _why(self, share: Share, holder: Holder) -> str:
        used, left = self.used, self._room()
        room = used + max(0, left)
        sentence = _NO_MEMORY if left <= 0 and used < self._most else _SENTENCES[share]
        return sentence.format(
            where=self._where,
            most=self._most if room >= self._most else f"the {room} that there is memory for",
            used=used,
            entries=self._entries.get(holder[:2], 0),
            callers=self._callers.get(holder[:3], 0),
        )

    def _used_up(self, holder: Holder) -> Share | None:
        reserve = self._most // RESERVE
        of_kubelets = self.held.get(Kind.KUBELETS, 0)
        others = self._to_kubelets - of_kubelets
        kept = max(0, reserve - of_kubelets - min(others, reserve // 2))
        room = self._room()
        if room <= 0:
            return Share.ALL
        if holder.kind is Kind.OTHER:
            return None
        if kept and (holder.kind is Kind.KUBELETS or (holder.to_kubelet and others < reserve // 2)):
            return None
        left = ENTRY * max(0, room - kept) - self._entries.get(holder[:2], 0)
        if holder.kind is Kind.KUBELETS:
            left += reserve
        if left <= 0:
            return Share.ENTRY
        if holder == FOR_KUBELETS:
            return None
        factor = KUBELET_CALLER if holder.kind is Kind.KUBELETS else CALLER
        return Share.CALLER if self._callers.get(holder[:3], 0) >= factor * left else None


@lru_cache(CACHED)
def _digest(text: str, bits: int) -> int:
    digest = sha256(text.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest, "big") >> 8 * len(digest) - bits
