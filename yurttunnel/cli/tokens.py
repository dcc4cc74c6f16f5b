"""``yurttunnel token``: join tokens of a server without a cluster."""

from __future__ import annotations

import sys

from yurttunnel.cli import output
from yurttunnel.cli.options import OUTPUT, STATE_DIR, ClientCommand, ClientOptions, Word
from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group
from yurttunnel.ops.help import Example

LIFETIME = Flag(
    "lifetime",
    Group.BASICS,
    flags.token_lifetime,
    "How long the token is valid, at most 365d.",
    default="24h",
)


class CreateOptions(ClientOptions):
    """Options of ``yurttunnel token create``."""

    longdesc = """Creates a join token and prints it, and on standard error the command that enrols
    a node with it. The token cannot be shown again: the server stores a hash. Anyone who has the
    token can enrol nodes until it expires or is revoked."""

    examples = (
        Example("Create a token for the nodes of one day"),
        Example("Create a token for a node that is set up now", "--lifetime 1h"),
    )

    table = (LIFETIME, STATE_DIR, OUTPUT)


class ListOptions(ClientOptions):
    """Options of ``yurttunnel token list``."""

    longdesc = """Lists the valid join tokens by their ids, without the secrets. The server renews
    the one in the file join-token of the state directory before it expires."""

    examples = (Example("List all valid tokens"),)

    table = (STATE_DIR, OUTPUT)


class RevokeOptions(ClientOptions):
    """Options of ``yurttunnel token revoke``."""

    longdesc = """Revokes a join token; ID is the part before the first dot. Nodes that were
    enrolled with it keep their access; "yurttunnel revoke NODE" ends that. If it was the token in
    the file join-token, the server writes a new one to the file."""

    examples = (Example("Revoke a token by its id", "0123456789abcdef"),)

    words = (Word("ID"),)
    table = (STATE_DIR, OUTPUT)


def create(options: CreateOptions) -> None:
    """Create a token."""
    created = options.process("server").post("/v1/tokens", lifetime=options[LIFETIME.name])
    if options.as_json:
        print(output.as_json(created), end="")
        return
    print(created["token"], flush=True)
    print(
        f"It expires at {created['expires']}. On the node run:\n\n  {created['command']}",
        file=sys.stderr,
    )


def list_tokens(options: ListOptions) -> None:
    """List the valid tokens."""
    response = options.process("server").get("/v1/tokens")
    if options.as_json:
        print(output.as_json(response), end="")
        return
    rows = [
        (
            each["id"],
            output.ago(each["created"], output.now()),
            each["expires"],
            "join-token" if each["in_file"] else "",
        )
        for each in response["tokens"]
    ]
    print(output.table(("ID", "AGE", "EXPIRES", "FILE"), rows), end="")


def revoke(options: RevokeOptions) -> None:
    """Revoke a token."""
    # A whole token is accepted as well; its secret is not sent.
    token_id = options.positionals[0].partition(".")[0]
    result = options.process("server").post("/v1/tokens/revoke", id=token_id)
    if options.as_json:
        print(output.as_json(result), end="")
    else:
        print(f"join token {output.shown(token_id)} is revoked")


TOKENS = (
    ClientCommand("token create", "create a join token for a node", CreateOptions, create),
    ClientCommand("token list", "list the valid join tokens", ListOptions, list_tokens),
    ClientCommand("token revoke", "revoke a join token", RevokeOptions, revoke),
)
