"""``yurttunnel revoke``: revokes a node's access."""

from __future__ import annotations

import sys

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed, Process
from yurttunnel.cli.options import OUTPUT, STATE_DIR, ClientCommand, ClientOptions, Word
from yurttunnel.ops.command_line import did_you_mean
from yurttunnel.ops.help import Example


class RevokeOptions(ClientOptions):
    """Options of ``yurttunnel revoke``."""

    longdesc = """Revokes the certificates of a node at a standalone server and closes its session.
    The node can be enrolled again with a join token that is created later. In a cluster use
    "kubectl delete node" instead."""

    examples = (Example("Cut off edge-1, which was stolen", "edge-1"),)

    words = (Word("NODE"),)
    table = (STATE_DIR, OUTPUT)


def _known_nodes(process: Process) -> list[str]:
    """Return the names of known nodes, for a suggestion; empty if they are not available."""
    try:
        return [each["node"] for each in process.get("/nodes")["nodes"]]
    except CommandFailed:
        # Revoking must not fail for this, and may be urgent.
        return []


def revoke(options: RevokeOptions) -> None:
    """Revoke the access, and print what was done."""
    process, name = options.process("server"), options.positionals[0]
    # Read first, because a revoked node is no longer listed.
    known = _known_nodes(process)
    result = process.post("/v1/revocations", node=name)
    print(
        output.as_json(result) if options.as_json else f"{output.shown(result['done'])}\n", end=""
    )
    meant = "" if name in known else did_you_mean(name, known)
    if meant:
        print(output.shown(f"nothing was known of {name!r}: {meant}"), file=sys.stderr)


REVOKE = ClientCommand("revoke", "revoke a node's access", RevokeOptions, revoke)
