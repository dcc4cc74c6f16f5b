"""Bits in the marks of connections that the kernel leads to endpoints (``ct mark``).

They are not those of packets: no routing, and nobody else's masquerading, depends on them.
"""

RETRIED = 0x2000
"""Of a connection for which there is another endpoint if this one does not answer."""

ATTENDED = 0x1000
"""Of a connection that has begun while there is a process that acts on refusals."""

MASQUERADED = 0x4000
"""Of one whose client's address is replaced: the bit that kube-proxy marks packets with
(``--iptables-masquerade-bit``)."""


def set_mark(bit: int) -> str:
    """Return the statement that sets a bit."""
    return f"ct mark set ct mark or {bit:#x}"


def has_mark(bit: int) -> str:
    """Return the match for a bit, of a connection that is led to another address.

    Other programs' marks may have the bit as well, such as wg-quick's 0xca6c.
    """
    return f"ct status dnat ct mark & {bit:#x} != 0"
