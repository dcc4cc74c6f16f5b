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
    "How long nodes can be enrolled with the token, at most 365d.",
    default="24h",
)


class CreateOptions(ClientOptions):
    """Options of ``yurttunnel token create``."""

    longdesc = """Makes a join token and prints it, and on standard error the command that has a
    node join with it. Nobody can ask for it again: the server keeps a hash. Whoever has the token
    can enrol nodes until it expires or is revoked."""

    examples = (
        Example("A token for nodes that come within a day"),
        Example("One for the node that is set up now", "--lifetime 1h"),
    )

    table = (LIFETIME, STATE_DIR, OUTPUT)


class ListOptions(ClientOptions):
    """Options of ``yurttunnel token list``."""

    longdesc = """Lists the join tokens that are good, by their ids, without the secrets. The one in
    the file join-token of the state directory is replaced in time by the server itself."""

    examples = (Example("All that are good"),)

    table = (STATE_DIR, OUTPUT)


class RevokeOptions(ClientOptions):
    """Options of ``yurttunnel token revoke``."""

    longdesc = """Has a join token enrol nobody any more; ID is what stands before the first dot.
    Nodes that have enrolled with it stay: "yurttunnel revoke NODE" ends those. If it was the one in
    the file join-token, the server writes another one there."""

    examples = (Example("By the id that the list has", "0123456789abcdef"),)

    words = (Word("ID"),)
    table = (STATE_DIR, OUTPUT)


def create(options: CreateOptions) -> None:
    """Make one."""
    made = options.process("server").post("/v1/tokens", lifetime=options[LIFETIME.name])
    if options.as_json:
        print(output.as_json(made), end="")
        return
    print(made["token"], flush=True)
    print(
        f"It is good until {made['expires']}. On the node:\n\n  {made['command']}", file=sys.stderr
    )


def list_tokens(options: ListOptions) -> None:
    """List those that are good."""
    told = options.process("server").get("/v1/tokens")
    if options.as_json:
        print(output.as_json(told), end="")
        return
    rows = [
        (
            each["id"],
            output.ago(each["created"], output.now()),
            each["expires"],
            "join-token" if each["in_file"] else "",
        )
        for each in told["tokens"]
    ]
    print(output.table(("ID", "AGE", "EXPIRES", "FILE"), rows), end="")


def revoke(options: RevokeOptions) -> None:
    """End one."""
    # Whoever pastes the whole token is understood, and its secret is not sent anywhere.
    token_id = options.given[0].partition(".")[0]
    done = options.process("server").post("/v1/tokens/revoke", id=token_id)
    if options.as_json:
        print(output.as_json(done), end="")
    else:
        print(f"join token {output.shown(token_id)} enrols nobody any more")


TOKENS = (
    ClientCommand("token create", "make a join token for a node", CreateOptions, create),
    ClientCommand("token list", "list the join tokens that are good", ListOptions, list_tokens),
    ClientCommand("token revoke", "have a join token enrol nobody more", RevokeOptions, revoke),
)
