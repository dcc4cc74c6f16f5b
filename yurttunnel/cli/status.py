"""``yurttunnel status``: the processes on this machine, and their problems."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed, NoResponse, Process
from yurttunnel.cli.cluster import Server
from yurttunnel.cli.discovery import process_in, running_processes
from yurttunnel.cli.options import CLUSTER_TABLE, OUTPUT, STATE_DIR, ClientCommand, ClientOptions
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
        return _cluster_status(options)
    directory = options.state_dir
    if directory is None:
        found, unresponsive = _query_all(running_processes())
    else:
        found, unresponsive = [_query(process_in(directory))], []
    if not found and not unresponsive:
        raise CommandFailed(
            "no program of this user runs on this machine: start it (yurttunnel --help lists"
            " programs), name its directory with --state-dir, or run this as its user or root"
        )
    for each in unresponsive:
        print(each, file=sys.stderr)
    if options.as_json:
        print(output.as_json(found), end="")
    else:
        print("\n".join(_process_text(each) for each in found), end="")
    return 0 if not unresponsive and all(each["ready"] for each in found) else 1


def _cluster_status(options: StatusOptions) -> int:
    reports = [_server_status(each) for each in options.servers() if isinstance(each, Server)]
    print(output.as_json(reports) if options.as_json else "".join(map(_pod_text, reports)), end="")
    return 0 if all(each["checks"][-1:] == ["ready"] for each in reports) else 1


def _server_status(server: Server) -> dict[str, Any]:
    checks, connected = [], 0
    try:
        checks = server.get_text("/readyz").splitlines()
        connected = sum(bool(each["connected"]) for each in server.get("/agents"))
    except CommandFailed as error:
        # The pod may have ended since it was found; the others must still be shown.
        checks = [str(error)]
    return {"pod": server.name, "checks": checks, "sessions_connected": connected}


def _pod_text(report: dict[str, Any]) -> str:
    *checks, state = report["checks"] or ["no answer"]
    lines = [f"{report['pod']}: {state}, nodes connected: {report['sessions_connected']}"]
    lines += (f"  {check}" for check in checks if not check.endswith(": ok"))
    return "".join(f"{output.shown(line)}\n" for line in lines)


def _query_all(processes: Iterable[Process]) -> tuple[list[dict[str, Any]], list[NoResponse]]:
    """Return the responses, and the processes that run but do not respond."""
    found: list[dict[str, Any]] = []
    unresponsive: list[NoResponse] = []
    for each in processes:
        try:
            found.append(_query(each))
        except NoResponse as error:
            unresponsive.append(error)
        except CommandFailed:
            continue  # It has ended, or is not one of our programs.
    return found, unresponsive


def _query(process: Process) -> dict[str, Any]:
    report: dict[str, Any] = process.get("/v1/process")
    # Other programs have no sessions.
    sessions = process.get("/agents") if report["program"] in PEERS else None
    report["directory"] = str(process.path.parent)
    if sessions is not None:
        report["sessions_connected"] = sum(bool(each["connected"]) for each in sessions)
    return report


def _process_text(report: dict[str, Any]) -> str:
    problems = [
        f"  {'warning' if not each['required'] else 'problem'}: {each['name']}: {each['problem']}"
        for each in report["checks"]
        if each["problem"] is not None
    ]
    peers = PEERS.get(report["program"])
    connected = f", {peers} connected: {report['sessions_connected']}" if peers else ""
    name = f" of node {report['node']}" if "node" in report else ""
    state = "ready" if report["ready"] else "NOT READY"
    running_for = output.ago(report["since"], output.now())
    lines = [
        f"{report['program']} {report['version']}{name}: {state}",
        f"  running for {running_for}, pid {report['pid']}{connected}",
        f"  directory {report['directory']}",
        f"  status page {report['status_page']}",
        *problems,
    ]
    return "".join(f"{output.shown(line)}\n" for line in lines)


STATUS = ClientCommand("status", "show what runs, and its problems", StatusOptions, status)
