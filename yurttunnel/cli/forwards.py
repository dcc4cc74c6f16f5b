"""``yurttunnel forward``: ports of a server that lead to targets behind agents."""

from __future__ import annotations

import sys

from yurttunnel.cli import output
from yurttunnel.cli.options import OUTPUT, STATE_DIR, ClientCommand, ClientOptions, Word
from yurttunnel.ops.command_line import did_you_mean
from yurttunnel.ops.flag_table import Group, Switch
from yurttunnel.ops.help import Example

REPLACE = Switch(
    "replace",
    Group.BASICS,
    "Replace the forward that listens there. Open connections stay; new ones go to the new target.",
)

_LASTS = """The change lasts until the server stops or its configuration sets a forward for this
address. To keep it, add it to the configuration (--forward)."""


def _forward(text: str) -> object:
    """Parse a forward as the server does; imported here because no other command needs it."""
    from yurttunnel.server.frontends.forward import parse_forward

    return parse_forward(text)


def _listen(text: str) -> object:
    """Parse the address that a forward listens on, likewise."""
    from yurttunnel.server.frontends.forward import parse_listen

    return parse_listen(text)


_HEADINGS = ("LISTEN", "NODE", "TARGET", "CONNECTIONS", "OPENED BY")

_NONE = "no forward is open; yurttunnel forward add LISTEN=NODE/HOST:PORT opens one"


class AddOptions(ClientOptions):
    """Options of ``yurttunnel forward add``."""

    longdesc = f"""Makes a running server listen on a port and forward connections to a target
    behind an agent: LISTEN=NODE/HOST:PORT, for example 127.0.0.1:9000=edge-1/127.0.0.1:80. PORT
    alone listens on the loopback address. The agent must allow the target: by default every port
    on the addresses and the name of its node (NODE/NODE:80), and on loopback the ports of the
    kubelet and the hub, but not its own meta port. {_LASTS}"""

    examples = (
        Example("Reach port 80 of node edge-1 at port 9000 here", "9000=edge-1/edge-1:80"),
        Example("The same for other machines", "0.0.0.0:9000=edge-1/edge-1:80"),
    )

    words = (Word("LISTEN=NODE/HOST:PORT", _forward),)
    table = (REPLACE, STATE_DIR, OUTPUT)


class RemoveOptions(ClientOptions):
    """Options of ``yurttunnel forward rm``."""

    longdesc = f"""Makes a running server stop listening at LISTEN: ADDRESS:PORT, or PORT of the
    loopback address. Open connections stay. {_LASTS}"""

    examples = (Example("Close port 9000 of the loopback address", "9000"),)

    words = (Word("LISTEN", _listen),)
    table = (STATE_DIR, OUTPUT)


class ListOptions(ClientOptions):
    """Options of ``yurttunnel forward ls``."""

    longdesc = """Lists the open forwards, the origin of each (the configuration or a command) and
    its number of connections."""

    examples = (Example("List all forwards"),)

    table = (STATE_DIR, OUTPUT)


def add(options: AddOptions) -> None:
    """Open a forward."""
    replace = "true" if options[REPLACE.name] else "false"
    process = options.process("server")
    result = process.post("/v1/forwards", forward=options.positionals[0], replace=replace)
    if options.as_json:
        print(output.as_json(result), end="")
        return
    print(f"{output.shown(result['listen'])} forwards to {_target(result)}", flush=True)
    states = {each["node"]: each["state"] for each in process.get("/nodes")["nodes"]}
    node = result["node"]
    if states.get(node) != "connected":
        suggestion = "" if node in states else did_you_mean(node, states)
        print(
            f"node {output.shown(node)} is not connected now: until it is, connections to this port"
            f" are reset; {output.shown(suggestion) or 'yurttunnel nodes lists those that are'}",
            file=sys.stderr,
        )
    elif needs_permission(result["target"]):
        print(
            "if connections to it are reset: an agent allows its own meta port, and ports on"
            " loopback that are neither the kubelet's nor the hub's, only if it is started with"
            f" --allow-destination {output.shown(result['target'])}",
            file=sys.stderr,
        )


def needs_permission(target: str) -> bool:
    """Return whether an agent denies ``target``, ADDRESS:PORT on its node, by default."""
    from yurttunnel.agent.policy import DEFAULT_META_PORT, DestinationPolicy, dialed_host

    host, _, text = target.rpartition(":")
    try:
        address, port = dialed_host(host.strip("[]")), int(text)
    except ValueError:
        return False
    if isinstance(address, str):
        return False  # A name does not show the address that needs permission.
    own = () if address.is_loopback else (address,)
    policy = DestinationPolicy("", own, meta_port=DEFAULT_META_PORT)
    return not policy.may_connect(address, port)


def remove(options: RemoveOptions) -> None:
    """Close a forward."""
    result = options.process("server").post("/v1/forwards/remove", listen=options.positionals[0])
    if options.as_json:
        print(output.as_json(result), end="")
    else:
        print(f"{output.shown(result['listen'])} no longer forwards to {_target(result)}")


def list_forwards(options: ListOptions) -> None:
    """List forwards."""
    response = options.process("server").get("/v1/forwards")
    if options.as_json:
        print(output.as_json(response), end="")
        return
    rows = [
        (each["listen"], each["node"], each["target"], each["connections"], each["origin"])
        for each in response["forwards"]
    ]
    print(output.table(_HEADINGS, rows), end="", flush=True)
    if not rows:
        print(_NONE, file=sys.stderr)


def _target(response: dict[str, str]) -> str:
    return output.shown(f"{response['node']}/{response['target']}")


FORWARDS = (
    ClientCommand("forward add", "forward a port to a target behind a node", AddOptions, add),
    ClientCommand("forward rm", "close a forwarded port", RemoveOptions, remove),
    ClientCommand("forward ls", "list the forwarded ports", ListOptions, list_forwards),
)
