"""Bits in the marks of connections that the kernel sends to endpoints (``ct mark``).

These are not packet marks: routing and the masquerading of other programs do not depend on them.
"""

RETRIED = 0x2000
"""The connection may be retried at another endpoint if this one does not respond."""

SUPERVISED = 0x1000
"""The connection began while a process ran that acts on refusals."""

MASQUERADED = 0x4000
"""The client's address is replaced; the bit is the one that kube-proxy uses for packets
(``--iptables-masquerade-bit``)."""


def set_mark(bit: int) -> str:
    """Return the statement that sets a bit."""
    return f"ct mark set ct mark or {bit:#x}"


def has_mark(bit: int) -> str:
    """Return the match for a bit of a translated connection.

    The marks of other programs may contain the bit as well, such as wg-quick's 0xca6c.
    """
    return f"ct status dnat ct mark & {bit:#x} != 0"
