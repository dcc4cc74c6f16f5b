"""``yurttunnel nodes``, ``node`` and ``revoke``: the connected, lost and absent nodes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from twisted.python import usage

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed, NotFound, Process
from yurttunnel.cli.cluster import Server
from yurttunnel.cli.options import (
    CLUSTER_TABLE,
    OUTPUT,
    STATE_DIR,
    ClientCommand,
    ClientOptions,
    Word,
)
from yurttunnel.ops.command_line import did_you_mean
from yurttunnel.ops.flag_table import Group, Switch
from yurttunnel.ops.help import Example

WATCH_SECONDS = 2.0
"""The interval between two requests with --watch."""

WATCH = Switch(
    "watch",
    Group.BASICS,
    "Keep running and print a line for each node that changes, until Ctrl-C. With -o json each"
    " line, including the first ones, is an object.",
    short="w",
)

_HEADINGS = ("NODE", "STATE", "FOR", "RTT", "STREAMS", "VERSION", "ADDRESS", "WHY")

_NO_NODES = (
    "no node is known yet; without a cluster, yurttunnel token create prints the command that"
    " enrols one"
)

_ORDER = ("absent", "lost", "waiting", "connected")
"""The order of states: if servers differ, the later one counts."""

Node = dict[str, Any]


class NodesOptions(ClientOptions):
    """Options of ``yurttunnel nodes``."""

    longdesc = """Lists the nodes that a server knows: connected; waiting, which may resume after
    a lost connection; lost, with the reason; and absent, which are enrolled (in a cluster: labelled
    as edge nodes) but not connected. "kubectl yurttunnel nodes" queries all servers of the
    cluster."""

    examples = (Example("List all nodes"), Example("Follow the changes", "--watch"))

    table = (WATCH, STATE_DIR, OUTPUT, *CLUSTER_TABLE)

    def parseArgs(self, *arguments: str) -> None:
        """Reject the name of a node, which another command shows."""
        if arguments:
            name = arguments[0]
            raise usage.UsageError(
                f"unexpected argument {name!r}: did you mean {self.program_name} node {name}?"
            )


class NodeOptions(ClientOptions):
    """Options of ``yurttunnel node``."""

    longdesc = """Shows one node: its identifiers, its sessions, and how the last sessions ended."""

    examples = (Example("See why edge-1 was lost", "edge-1"),)

    words = (Word("NODE"),)
    table = (STATE_DIR, OUTPUT, *CLUSTER_TABLE)


def nodes(options: NodesOptions) -> None:
    """List the nodes."""
    servers = _Servers(options)
    known = servers.nodes()
    if options.as_json and options[WATCH.name]:
        _print_changed(known, as_json=True)
    elif options.as_json:
        print(output.as_json({"nodes": known}), end="")
    else:
        print(output.table(_HEADINGS, [_row(each) for each in known]), end="", flush=True)
        if not known:
            print(_NO_NODES, file=sys.stderr)
    if options[WATCH.name]:
        _watch(known, servers.nodes, options.as_json)


class _Servers:
    """Queries the servers; of one that does not respond the last response is used.

    Other servers know its nodes, too, but in less detail, so each node would seem to have changed.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._responses: dict[str, list[Node]] = {}

    def nodes(self) -> list[Node]:
        """Return each node once; raise :class:`CommandFailed` if no server responds."""
        responses: dict[str, list[Node]] = {}

        def query(server: Process | Server) -> None:
            responses[server.name] = self._responses.get(server.name, [])
            responses[server.name] = server.get("/nodes")["nodes"]

        self._options.query(query)
        self._responses = responses
        return merged(list(responses.values()))


def _watch(before: list[Node], poll: Callable[[], list[Node]], as_json: bool) -> None:
    problem = ""
    while True:
        time.sleep(WATCH_SECONDS)
        try:
            known, problem = poll(), ""
        except CommandFailed as error:
            # The server may be restarting.
            if str(error) != problem:
                problem = str(error)
                print(f"{problem}; retrying", file=sys.stderr)
            continue
        _print_changed(changed(before, known), as_json)
        before = known


def _print_changed(some: Iterable[Node], as_json: bool) -> None:
    for node in some:
        cells = "  ".join(output.shown(cell) for cell in _row(node)).rstrip()
        print(json.dumps(node) if as_json else cells, flush=True)


def changed(before: Sequence[Node], after: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes that are new, or whose state differs from ``before``."""
    states = {each["node"]: (each["state"], each["since"]) for each in before}
    for node in after:
        if states.get(node["node"]) != (node["state"], node["since"]):
            yield node


def merged(responses: Sequence[Sequence[Node]]) -> list[Node]:
    """Return each node once, sorted by name, from the server with its best state."""
    found: dict[str, Node] = {}
    for node in (node for each in responses for node in each):
        present = found.get(node["node"])
        if present is None or _rank(node) > _rank(present):
            found[node["node"]] = node
    return [found[name] for name in sorted(found)]


def _rank(node: Node) -> tuple[int, bool, str]:
    state = node["state"]
    # A server with a session knows more than one that only has a route.
    return (
        _ORDER.index(state) if state in _ORDER else -1,
        node.get("through") is None,
        node["since"] or "",
    )


def _row(node: Node) -> tuple[str, ...]:
    rtt = node["rtt_seconds"]
    return (
        node["node"],
        node["state"],
        output.ago(node["since"], output.now()),
        "-" if rtt is None else f"{rtt * 1000:.0f}ms",
        "-" if node["streams"] is None else str(node["streams"]),
        node["version"] or "-",
        node["address"] or "-",
        node["reason"] or "",
    )


def node(options: NodeOptions) -> None:
    """Show one node."""
    name = options.positionals[0]
    page = f"/nodes/{quote(name, safe='', errors='surrogateescape')}"
    responses = [
        each for each in options.query(lambda server: _get_node(server, page)) if each is not None
    ]
    if not responses:
        known = [each["node"] for each in _Servers(options).nodes()]
        suggestion = output.shown(did_you_mean(name, known))
        suggestion = suggestion or f"{options.program_name} nodes lists the known ones"
        raise CommandFailed(f"unknown node {name!r}: {suggestion}")
    best = max(responses, key=_rank)
    print(output.as_json(best) if options.as_json else described(best), end="")


def _get_node(server: Process | Server, page: str) -> Node | None:
    try:
        found: Node = server.get(page)
    except NotFound:
        return None
    return found


NODES = (
    ClientCommand("nodes", "list the nodes: connected, lost or absent", NodesOptions, nodes),
    ClientCommand("node", "show the details of one node", NodeOptions, node),
)


_SESSION = (
    "session",
    "since",
    "rtt_seconds",
    "streams",
    "bytes_received",
    "bytes_sent",
    "resumptions",
    "address",
)
"""The fields of a session that are shown; JSON has all."""

_IDENTIFIER = 8
"""The number of characters of a session's ID, as in the log."""


def described(node: Mapping[str, object]) -> str:
    """Format an entry of ``/nodes/NAME``: a line for each value, a table for each list."""
    return "".join(f"{line}\n" for line in _lines(node))


def _lines(node: Mapping[str, object]) -> Iterator[str]:
    for key, value in node.items():
        if not isinstance(value, list):
            yield f"{_name(key)}: {_value(key, value)}"
        elif not value:
            yield f"{_name(key)}: none"
        else:
            columns = _SESSION if key == "sessions" else list(value[0])
            yield f"{_name(key)}:"
            yield from _table(columns, value)


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    headings = [_name(each).upper() for each in columns]
    cells = [[_value(each, row.get(each)) for each in columns] for row in rows]
    for line in output.table(headings, cells).splitlines():
        yield f"  {line}"


def _name(key: str) -> str:
    return "round trip" if key == "rtt_seconds" else output.shown(key.replace("_", " "))


def _value(key: str, value: object) -> str:
    """Return a value for a cell; ``-`` if it is unknown."""
    match value:
        case None | "":
            return "-"
        case float() if key == "rtt_seconds":
            return f"{value * 1000:.1f}ms"
        case str() if key == "session":
            return output.shown(value[:_IDENTIFIER])
    return output.shown(value)


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
    suggestion = "" if name in known else did_you_mean(name, known)
    if suggestion:
        print(output.shown(f"unknown node {name!r}: {suggestion}"), file=sys.stderr)


REVOKE = ClientCommand("revoke", "revoke a node's access", RevokeOptions, revoke)
