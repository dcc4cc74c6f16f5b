"""Connections that have been led here stay led, whatever becomes of the rules that did it.

The kernel remembers where it leads a connection, but applies that only while it tracks
connections, and while there is a chain of the type ``nat``. It begins with the first rule that
needs either, and ends with the last one: where the rules of this server are the only ones, whoever
flushes them, or the server itself when it drains, would break every connection that they have led
(``nf_ct_netns_put`` of net/netfilter/nf_conntrack_proto.c, ``nf_nat_unregister_fn`` of
nf_nat_core.c). So this process has a table of nftables with one of each. It is the process's own:
nobody else can change it, no ``flush ruleset`` removes it, and it ends with the process, however
that ends.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct

from pyroute2.netlink import NETLINK_NETFILTER, NLM_F_CREATE
from pyroute2.netlink.nfnetlink.nftsocket import (
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE,
)
from twisted.application.service import Service
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.netlink.conversation import CHANGE, GET, Conversation
from yurttunnel.steering.netlink.generation import NFNL_SUBSYS_NFTABLES
from yurttunnel.steering.netlink.messages import NESTED, attribute, raw_request
from yurttunnel.steering.netlink.refusals import as_steering_failed
from yurttunnel.steering.netlink.worker import Run

TABLE = "yurttunnel-"
"""What the name of the table begins with; the rest is the process's own, since two servers may
be there while one takes the place of the other."""

_CHAIN = b"keep\0"

_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
"""``NFNL_MSG_BATCH_BEGIN`` and ``_END`` of linux/netfilter/nfnetlink.h: what is between them is
done as a whole, or not at all."""

_INET = 1
"""``NFPROTO_INET`` of linux/netfilter.h: both families."""

# NFTA_* of linux/netfilter/nf_tables.h: of a table, a chain and its hook, a rule, an expression.
_TABLE_NAME, _TABLE_FLAGS = 1, 2
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_TYPE = 1, 3, 4, 7
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_RULE_TABLE, _RULE_CHAIN, _RULE_EXPRESSIONS = 1, 2, 4
_ELEMENT, _EXPRESSION_NAME, _EXPRESSION_DATA = 1, 1, 2
_CT_REGISTER, _CT_KEY = 1, 2

_OWNER = 2
"""``NFT_TABLE_F_OWNER``, from Linux 5.12 on."""

_OUTPUT, _LAST = 3, 100
"""``NF_INET_LOCAL_OUT``, and a priority behind the rules of iptables (``NF_IP_PRI_NAT_DST``)."""

_REGISTER, _STATE = 8, 0
"""``NFT_REG32_00`` and ``NFT_CT_STATE``: the rule reads the state, and does nothing with it."""

_TOO_OLD = "that takes nf_tables of Linux 5.12 or later"
_MEANINGS = dict.fromkeys(
    (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EPROTONOSUPPORT), _TOO_OLD
)


class Tracking(Service):
    """Has the kernel track connections, and translate them, from its start to its stop.

    ``run`` is where the kernel is waited for. What is refused is told in the log, once.
    """

    _log = Logger()

    def __init__(self, run: Run) -> None:
        self._run = run
        self._table: Conversation | None = None

    def startService(self) -> None:
        """Begin."""
        super().startService()
        _ = self._run(_own_table).addCallback(self._begun).addErrback(self._refused)

    def stopService(self) -> None:
        """End; connections go on as long as rules of somebody need them tracked."""
        super().stopService()
        if self._table is not None:
            self._table.close()
            self._table = None

    def _begun(self, table: Conversation) -> None:
        if self.running:
            self._table = table
        else:
            table.close()

    def _refused(self, failure: Failure) -> None:
        failure.trap(SteeringFailed)
        self._log.warn(
            "--enable-iptables: {error}. Where no rule of others looks at the state of connections"
            " either, as those of kube-proxy do, streams end when the rules of this server go",
            error=str(failure.value),
        )


def _own_table() -> Conversation:
    """Make the table; it is there until the conversation is closed."""
    with as_steering_failed("cannot keep connections tracked", _MEANINGS):
        kernel = Conversation(NETLINK_NETFILTER)
        try:
            kernel.change(_batch(f"{TABLE}{secrets.token_hex(4)}\0".encode()))
        except BaseException:
            kernel.close()
            raise
        return kernel


def _batch(table: bytes) -> bytes:
    """Make the messages for a table with a chain and a rule; the last one alone is acknowledged."""
    hook = attribute(_HOOK_NUMBER, _number(_OUTPUT)) + attribute(_HOOK_PRIORITY, _number(_LAST))
    state = attribute(_CT_REGISTER, _number(_REGISTER)) + attribute(_CT_KEY, _number(_STATE))
    expression = attribute(_EXPRESSION_NAME, b"ct\0") + attribute(_EXPRESSION_DATA | NESTED, state)
    return b"".join(
        (
            _message(_BATCH_BEGIN, GET, socket.AF_UNSPEC, NFNL_SUBSYS_NFTABLES),
            _change(
                NFT_MSG_NEWTABLE,
                GET,
                attribute(_TABLE_NAME, table),
                attribute(_TABLE_FLAGS, _number(_OWNER)),
            ),
            _change(
                NFT_MSG_NEWCHAIN,
                GET,
                attribute(_CHAIN_TABLE, table),
                attribute(_CHAIN_NAME, _CHAIN),
                attribute(_CHAIN_HOOK | NESTED, hook),
                attribute(_CHAIN_TYPE, b"nat\0"),
            ),
            _change(
                NFT_MSG_NEWRULE,
                CHANGE,
                attribute(_RULE_TABLE, table),
                attribute(_RULE_CHAIN, _CHAIN),
                attribute(_RULE_EXPRESSIONS | NESTED, attribute(_ELEMENT | NESTED, expression)),
            ),
            _message(_BATCH_END, GET, socket.AF_UNSPEC, NFNL_SUBSYS_NFTABLES),
        )
    )


def _change(kind: int, flags: int, *attributes: bytes) -> bytes:
    kind |= NFNL_SUBSYS_NFTABLES << 8
    return _message(kind, flags | NLM_F_CREATE, _INET, 0, b"".join(attributes))


def _message(kind: int, flags: int, family: int, resource: int, content: bytes = b"") -> bytes:
    """Put ``struct nfgenmsg`` before the attributes, and a header before both."""
    return raw_request(struct.pack("!BBH", family, 0, resource) + content, kind, flags)


def _number(number: int) -> bytes:
    return struct.pack("!I", number)
