"""Shares of the available streams, so that no holder starves the others.

The number of streams is limited in each session and, by the memory for streams, in each process.
Each *entry* (a forward, an endpoint for CONNECT, the pass-through, the ports for requests to
kubelets) may hold twice as many streams as remain free: two thirds if it is the only one, or 350 of
875 each if there are two. Each caller of an entry may hold sixteen times as many as remain free of
the entry's share. So a new caller always finds room, without a fixed reservation for callers that
may never come. This is the dynamic threshold for the shared buffer of a switch (Choudhury and
Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM Transactions on
Networking 6, 1998).

An eighth is reserved for streams to kubelets, half of it regardless of their entry. The ports for
requests to kubelets may hold that many in addition to their share of the rest. Unacknowledged data
does not use that eighth of the memory either.
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
"""The factors: how many times as many streams as remain free an entry, or a caller of it, may hold.

It is lower for a caller of the ports for requests to kubelets, because the rest also has to serve
short requests, whose connections all callers share.
"""

CACHE_SIZE: Final = 4096
"""The size of the caches for addresses, flags and callers, which recur with each dial."""


class Kind(enum.StrEnum):
    """The kind of entry by which a stream is requested; the values are those of a metric label."""

    FORWARD = "forward"
    CONNECT = "connect"
    PASSTHROUGH = "passthrough"
    KUBELETS = "kubelets"
    """The ports for requests to kubelets, including their connection pool."""
    OTHER = "other"
    """The server's own streams, to which only the total limit applies."""


class Share(enum.StrEnum):
    """The share that is used up; the values are those of a metric label."""

    CALLER = "caller"
    ENTRY = "entry"
    ALL = "all"


# Looked up once: an attribute access to an enum costs as much as a function call.
_PASSTHROUGH, _KUBELETS, _OTHER = Kind.PASSTHROUGH, Kind.KUBELETS, Kind.OTHER

_KINDS = tuple(Kind)
_ENTRY_BITS, _CALLER_BITS = 21, 48

_MESSAGES = {
    Share.CALLER: (
        "this caller has {callers} streams {where} through this entry, its share of {most}: close"
        " some, or reuse connections"
    ),
    Share.ENTRY: (
        "the callers of this entry have {entries} streams {where}, its share of {most}: close"
        " some, or reuse connections"
    ),
    Share.ALL: "{used} streams are open {where}, of {most}: close some, or try again later",
}
_NO_MEMORY = (
    "there is no memory for another stream {where} in addition to the {used} open ones: read the"
    " data that is buffered for them, or try again later"
)


class Holder(NamedTuple):
    """The holder of a stream: the ``entry`` of a kind, and the ``caller`` of that entry.

    These are digests of the flag (21 bits) and of the caller's address (48 bits), so a server that
    forwards a stream to a sibling encodes them in twelve characters. ``to_kubelet`` is true if the
    stream goes to a kubelet; each session determines that itself.
    """

    kind: Kind
    entry: int = 0
    caller: int = 0
    to_kubelet: bool = False

    @classmethod
    @lru_cache(CACHE_SIZE)
    def of(cls, kind: Kind, flag: str, caller: str) -> Holder:
        """Return the holder for a caller of the entry that ``flag`` configures."""
        return cls(kind, _digest(flag, _ENTRY_BITS), _digest(caller, _CALLER_BITS))

    def for_port(self, port: int) -> Holder:
        """Return the same holder for a stream to ``port``."""
        to_kubelet = self.kind in (_KUBELETS, _PASSTHROUGH) or port in KUBELET_PORTS
        return self if to_kubelet is self.to_kubelet else Holder(*self[:3], to_kubelet)

    def __str__(self) -> str:
        """Encode the holder for :meth:`parse`: URL-safe base64 of nine bytes (RFC 4648)."""
        number = (_KINDS.index(self.kind) << _ENTRY_BITS | self.entry) << _CALLER_BITS | self.caller
        return urlsafe_b64encode(number.to_bytes(9, "big")).decode()

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Decode the text of another server; raises ``ValueError`` if it is malformed."""
        number = int.from_bytes(urlsafe_b64decode(text), "big")
        kind, digests = divmod(number, 1 << _ENTRY_BITS + _CALLER_BITS)
        if kind >= len(_KINDS):
            raise ValueError(f"{text!r} names no kind of entry")
        return cls(_KINDS[kind], *divmod(digests, 1 << _CALLER_BITS))


OTHER: Final = Holder(_OTHER)
"""The server itself."""

FOR_KUBELETS: Final = Holder(_KUBELETS, to_kubelet=True)
"""The ports for requests to kubelets: connections that all callers share."""


def for_kubelets(caller: object) -> Holder:
    """Return the holder of a connection to a kubelet for ``caller``; ``None`` is all callers."""
    if caller is None:
        return FOR_KUBELETS
    return FOR_KUBELETS._replace(caller=_digest(str(caller), _CALLER_BITS))


@lru_cache(CACHE_SIZE)
def caller_at(host: str) -> str:
    """Return the caller that an address counts as: all of an IPv6 /64 are one (RFC 7421)."""
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ip_network((int(address), 64), strict=False))


class ShareUsedUp(Exception):
    """A holder may not open another stream; the message says which share is used up."""

    def __init__(self, share: Share, text: str) -> None:
        super().__init__(text)
        self.share = share


class Shares:
    """The holders of up to ``most`` streams; ``where`` describes these in messages.

    ``room()`` returns how many more streams are possible. If there are enclosing shares,
    ``parent``, every stream also counts there. ``held`` counts the streams of each kind, ``used``
    all of them.
    """

    def __init__(
        self, where: str, most: int, room: Callable[[], int], parent: Shares | None = None
    ) -> None:
        self.held: Counter[Kind] = Counter()
        self.used = 0
        self._where = where
        self._maximum = most
        self._available = room
        # These and all enclosing shares, in one tuple, because each dial loops over them.
        self._all: tuple[Shares, ...] = (self,) if parent is None else (self, *parent._all)
        self._to_kubelets = 0
        # Plain dictionaries: a Counter calls a Python function for each missing key.
        self._entries: dict[tuple[Kind, int], int] = {}
        self._callers: dict[tuple[Kind, int, int], int] = {}

    def check(self, holder: Holder) -> None:
        """Raise :class:`ShareUsedUp` if ``holder`` may not open another stream."""
        for each in self._all:
            share = each._used_up(holder)
            if share is not None:
                raise ShareUsedUp(share, each._message(share, holder))

    def acquire(self, holder: Holder) -> None:
        """Count a stream of ``holder``."""
        entry, caller = holder[:2], holder[:3]
        for each in self._all:
            each.used += 1
            each.held[holder.kind] += 1
            each._to_kubelets += holder.to_kubelet
            each._entries[entry] = each._entries.get(entry, 0) + 1
            each._callers[caller] = each._callers.get(caller, 0) + 1

    def release(self, holder: Holder) -> None:
        """Release a stream of ``holder``."""
        for each in self._all:
            each.release_here(holder)

    def release_in_parents(self, holder: Holder) -> None:
        """Release it in the enclosing shares only; :meth:`release_here` follows later."""
        for each in self._all[1:]:
            each.release_here(holder)

    def release_here(self, holder: Holder) -> None:
        """Release it in these shares only."""
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

    def _message(self, share: Share, holder: Holder) -> str:
        used, left = self.used, self._available()
        room = used + max(0, left)
        sentence = _NO_MEMORY if left <= 0 and used < self._maximum else _MESSAGES[share]
        return sentence.format(
            where=self._where,
            most=self._maximum if room >= self._maximum else f"the {room} that there is memory for",
            used=used,
            entries=self._entries.get(holder[:2], 0),
            callers=self._callers.get(holder[:3], 0),
        )

    def _used_up(self, holder: Holder) -> Share | None:
        reserve = self._maximum // RESERVE
        of_kubelets = self.held.get(_KUBELETS, 0)
        others = self._to_kubelets - of_kubelets
        kept = max(0, reserve - of_kubelets - min(others, reserve // 2))
        room = self._available()
        if room <= 0:
            return Share.ALL
        if holder.kind is _OTHER:
            return None
        if kept and (holder.kind is _KUBELETS or (holder.to_kubelet and others < reserve // 2)):
            return None
        left = ENTRY * max(0, room - kept) - self._entries.get(holder[:2], 0)
        if holder.kind is _KUBELETS:
            left += reserve
        if left <= 0:
            return Share.ENTRY
        if holder == FOR_KUBELETS:
            return None
        factor = KUBELET_CALLER if holder.kind is _KUBELETS else CALLER
        return Share.CALLER if self._callers.get(holder[:3], 0) >= factor * left else None


@lru_cache(CACHE_SIZE)
def _digest(text: str, bits: int) -> int:
    digest = sha256(text.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest, "big") >> 8 * len(digest) - bits
