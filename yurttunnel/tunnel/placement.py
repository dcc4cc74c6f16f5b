"""Which process of a server a node's session belongs to, told in the open before TLS has begun.

An agent offers, beside the protocol that it speaks, one by ALPN that nobody ever selects: a hash
of its node's name. So the process that accepts the connection can pass it, unopened, to the one
that has the node's sessions. It is a wish and no proof: who the node is comes from its certificate.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_PROTOCOL = re.compile(rb"yurttunnel-node/([0-9a-f]{8})")


def placement_protocol(node: str) -> bytes:
    """Return the protocol that an agent of ``node`` offers.

    It ends in the first four bytes of the SHA-256 of the name, as eight hexadecimal digits.
    """
    return b"yurttunnel-node/" + hashlib.sha256(node.encode()).hexdigest()[:8].encode()


def placement_of(offered: Iterable[bytes]) -> int | None:
    """Read the hash, a number of 32 bits, from what a peer offers; ``None`` where there is none."""
    for protocol in offered:
        match = _PROTOCOL.fullmatch(protocol)
        if match is not None:
            return int(match[1], 16)
    return None
