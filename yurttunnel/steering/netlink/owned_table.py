"""nftables tables that belong to a process: they end with it, however it ends.

No other program can change such a table, and no ``flush ruleset`` removes it: it belongs to the
socket that has created it (``NFT_TABLE_F_OWNER``, Linux 5.12).
"""

from __future__ import annotations

import errno
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.messages import NESTED, attribute, netfilter_request, number, text
from yurttunnel.steering.netlink.netlink_socket import (
    APPEND,
    CHANGE,
    CREATE,
    GET,
    NETLINK_NETFILTER,
    NetlinkSocket,
)
from yurttunnel.steering.netlink.nftables import NFNL_SUBSYS_NFTABLES
from yurttunnel.steering.netlink.worker import Run

_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
"""``NFNL_MSG_BATCH_BEGIN`` and ``_END`` from linux/netfilter/nfnetlink.h: what is between them is
applied as a whole, or not at all."""

_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
"""``NFT_MSG_*`` from linux/netfilter/nf_tables.h."""

_INET = 1
"""``NFPROTO_INET`` from linux/netfilter.h: both families."""

# NFTA_* from linux/netfilter/nf_tables.h: of a table, a chain and its hook, a rule.
_TABLE_NAME, _TABLE_FLAGS = 1, 2
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_TYPE = 1, 3, 4, 7
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_RULE_TABLE, _RULE_CHAIN, _RULE_EXPRESSIONS = 1, 2, 4

_OWNER = 2
"""``NFT_TABLE_F_OWNER``."""

INPUT, OUTPUT, POSTROUTING = 1, 3, 4
"""``NF_INET_LOCAL_IN``, ``_LOCAL_OUT`` and ``_POST_ROUTING`` from linux/netfilter.h."""

_TOO_OLD = "this requires nf_tables of Linux 5.12 or later"
_ERROR_TEXTS = dict.fromkeys(
    (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EPROTONOSUPPORT), _TOO_OLD
)


@dataclass(frozen=True, slots=True)
class BaseChain:
    """A base chain with ``rules``, each made of :mod:`~yurttunnel.steering.netlink.expressions`.

    ``kind`` is ``filter`` or ``nat``, ``hook`` one of the numbers above.
    """

    name: str
    kind: str
    hook: int
    priority: int
    rules: tuple[bytes, ...]


class OwnedTable(Service):
    """Has a table of both families from its start to its stop.

    Its name is ``prefix`` and a random suffix, since two processes may run while one replaces the
    other. ``run`` runs blocking calls to the kernel. Errors are passed to ``on_error``, with a text
    that begins with ``what``.
    """

    def __init__(
        self,
        run: Run,
        prefix: str,
        chains: Sequence[BaseChain],
        what: str,
        on_error: Callable[[SteeringFailed], object],
    ) -> None:
        self._run = run
        self._prefix = prefix
        self._chains = tuple(chains)
        self._what = what
        self._on_error = on_error
        self._table: NetlinkSocket | None = None
        self._creation: Deferred[None] = succeed(None)

    def startService(self) -> None:
        super().startService()
        creation = self._run(partial(_create, self._prefix, self._chains, self._what))
        self._creation = creation.addCallback(self._created).addErrback(self._failed)

    def stopService(self) -> Deferred[None]:
        """Close the table; fires once a creation in progress has ended, too."""
        super().stopService()
        if self._table is not None:
            self._table.close()
            self._table = None
        return self._creation

    def _created(self, table: NetlinkSocket) -> None:
        if self.running:
            self._table = table
        else:
            table.close()

    def _failed(self, failure: Failure) -> None:
        failure.trap(SteeringFailed)
        self._on_error(failure.value)  # type: ignore[arg-type] # trap() checks the type


def _create(prefix: str, chains: Sequence[BaseChain], what: str) -> NetlinkSocket:
    """Create the table; it exists until the socket is closed."""
    with as_steering_failed(what, _ERROR_TEXTS):
        kernel = NetlinkSocket(NETLINK_NETFILTER)
        try:
            kernel.change(_batch(text(f"{prefix}{secrets.token_hex(4)}"), chains))
        except BaseException:
            kernel.close()
            raise
        return kernel


def _batch(table: bytes, chains: Sequence[BaseChain]) -> bytes:
    """Encode the messages; only that of the last rule is acknowledged."""
    messages = [
        _boundary(_BATCH_BEGIN),
        _change(
            _NEW_TABLE, GET, attribute(_TABLE_NAME, table), attribute(_TABLE_FLAGS, number(_OWNER))
        ),
    ]
    for chain in chains:
        hook = attribute(_HOOK_NUMBER, number(chain.hook))
        hook += attribute(_HOOK_PRIORITY, struct.pack("!i", chain.priority))
        messages += [
            _change(
                _NEW_CHAIN,
                GET,
                attribute(_CHAIN_TABLE, table),
                attribute(_CHAIN_NAME, text(chain.name)),
                attribute(_CHAIN_HOOK | NESTED, hook),
                attribute(_CHAIN_TYPE, text(chain.kind)),
            )
        ]
    rules = [(chain, rule) for chain in chains for rule in chain.rules]
    for place, (chain, rule) in enumerate(rules, 1):
        messages.append(
            _change(
                _NEW_RULE,
                APPEND | (CHANGE if place == len(rules) else GET),
                attribute(_RULE_TABLE, table),
                attribute(_RULE_CHAIN, text(chain.name)),
                attribute(_RULE_EXPRESSIONS | NESTED, rule),
            )
        )
    messages.append(_boundary(_BATCH_END))
    return b"".join(messages)


def _boundary(kind: int) -> bytes:
    return netfilter_request(0, kind, GET, resource=NFNL_SUBSYS_NFTABLES)


def _change(command: int, flags: int, *attributes: bytes) -> bytes:
    content = b"".join(attributes)
    return netfilter_request(NFNL_SUBSYS_NFTABLES, command, flags | CREATE, content, _INET)
