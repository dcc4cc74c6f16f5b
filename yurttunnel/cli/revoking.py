"""``yurttunnel revoke``: takes a node's access away."""

from __future__ import annotations

from yurttunnel.cli import output
from yurttunnel.cli.options import OUTPUT, STATE_DIR, ClientCommand, ClientOptions


class RevokeOptions(ClientOptions):
    """Options of ``yurttunnel revoke``."""

    longdesc = """Revokes the certificates of a node at a server without a cluster, and ends its
    session. It can be enrolled again with a join token that is made later. In a cluster a node is
    revoked by "kubectl delete node"."""

    words = ("NODE",)
    table = (STATE_DIR, OUTPUT)


def revoke(options: RevokeOptions) -> None:
    """Revoke it, and say what was done."""
    done = options.process("server").post("/v1/revocations", node=options.given[0])
    print(output.as_json(done) if options.as_json else f"{output.shown(done['done'])}\n", end="")


REVOKE = ClientCommand("revoke", "take a node's access away", RevokeOptions, revoke)
