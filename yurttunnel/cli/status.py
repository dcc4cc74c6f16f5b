"""``yurttunnel status``: the processes on this machine, and their problems."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed, NoAnswer, Process
from yurttunnel.cli.cluster import Server
from yurttunnel.cli.finding import in_directory, running
from yurttunnel.cli.options import (
    CLUSTER_TABLE,
    OUTPUT,
    STATE_DIR,
    ClientCommand,
    ClientOptions,
)
from yurttunnel.ops.help import Example

PEERS = {"yurttunnel-server": "nodes", "yurttunnel-agent": "servers"}
"""The peers of the programs that have sessions."""


class StatusOptions(ClientOptions):
    """Options of ``yurttunnel status``."""

    longdesc = """Shows the servers, agents, hubs and proxies that this user or root runs on this
    machine: their uptime, status page and problems; for a cluster all its servers and the number of
    nodes connected to each. The exit status is 0 if all are ready, else 1."""

    examples = (Example("Show what runs here"), Example("The same for programs", "-o json"))

    table = (STATE_DIR, OUTPUT, *CLUSTER_TABLE)


def status(options: StatusOptions) -> int:
    """Print the status; return the exit status."""
    if options.in_cluster:
        return _of_cluster(options)
    named = options.state_dir
    if named is None:
        found, silent = _ask_all(running())
    else:
        found, silent = [_ask(in_directory(named))], []
    if not found and not silent:
        raise CommandFailed(
            "nothing of yours runs on this machine: start it (yurttunnel --help lists programs),"
            " name its directory with --state-dir, or run this as its user or root"
        )
    for each in silent:
        print(each, file=sys.stderr)
    if options.as_json:
        print(output.as_json(found), end="")
    else:
        print("\n".join(_described(each) for each in found), end="")
    return 0 if not silent and all(each["ready"] for each in found) else 1


def _of_cluster(options: StatusOptions) -> int:
    told = [_server(each) for each in options.servers() if isinstance(each, Server)]
    print(output.as_json(told) if options.as_json else "".join(map(_pod, told)), end="")
    return 0 if all(each["checks"][-1:] == ["ready"] for each in told) else 1


def _server(server: Server) -> dict[str, Any]:
    checks, connected = [], 0
    try:
        checks = server.get_text("/readyz").splitlines()
        connected = sum(bool(each["connected"]) for each in server.get("/agents"))
    except CommandFailed as error:
        # The pod may have ended since it was found; the others must still be shown.
        checks = [str(error)]
    return {"pod": server.name, "checks": checks, "sessions_connected": connected}


def _pod(told: dict[str, Any]) -> str:
    *checks, state = told["checks"] or ["no answer"]
    lines = [f"{told['pod']}: {state}, nodes connected: {told['sessions_connected']}"]
    lines += (f"  {check}" for check in checks if not check.endswith(": ok"))
    return "".join(f"{output.shown(line)}\n" for line in lines)


def _ask_all(processes: Iterable[Process]) -> tuple[list[dict[str, Any]], list[NoAnswer]]:
    """Return the responses, and the processes that run but do not respond."""
    found: list[dict[str, Any]] = []
    silent: list[NoAnswer] = []
    for each in processes:
        try:
            found.append(_ask(each))
        except NoAnswer as error:
            silent.append(error)
        except CommandFailed:
            continue  # It has ended, or is not one of our programs.
    return found, silent


def _ask(process: Process) -> dict[str, Any]:
    told: dict[str, Any] = process.get("/v1/process")
    # Other programs have no sessions.
    sessions = process.get("/agents") if told["program"] in PEERS else None
    told["directory"] = str(process.path.parent)
    if sessions is not None:
        told["sessions_connected"] = sum(bool(each["connected"]) for each in sessions)
    return told


def _described(told: dict[str, Any]) -> str:
    problems = [
        f"  {'warning' if not each['required'] else 'problem'}: {each['name']}: {each['problem']}"
        for each in told["checks"]
        if each["problem"] is not None
    ]
    peers = PEERS.get(told["program"])
    connected = f", {peers} connected: {told['sessions_connected']}" if peers else ""
    name = f" of node {told['node']}" if "node" in told else ""
    lines = [
        f"{told['program']} {told['version']}{name}: {'ready' if told['ready'] else 'NOT READY'}",
        f"  running for {output.ago(told['since'], output.now())}, pid {told['pid']}{connected}",
        f"  directory {told['directory']}",
        f"  status page {told['status_page']}",
        *problems,
    ]
    return "".join(f"{output.shown(line)}\n" for line in lines)


STATUS = ClientCommand("status", "show what runs, and its problems", StatusOptions, status)
