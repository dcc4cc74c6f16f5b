"""The state of the running process, from its meta port; or that it does not respond."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.diagnose.bundle import Part

PAGE_SECONDS = 5.0
"""The timeout of a response; a process that takes longer hangs."""

MAX_BYTES = 64 * 1024 * 1024
"""The maximum size of a response: the metrics of 10,000 nodes are some 10 MB."""

LAG_SECONDS = 0.5
"""The reactor lag from which on interactive users notice delays."""

# The pages of all programs; a program without such a page responds with 404. The empty path is the
# status page, with the last warnings and errors.
PAGES = (
    "healthz",
    "readyz",
    "metrics",
    "agents",
    "nodes",
    "steering",
    "services",
    "mode",
    "",
    "debug/sessions",
    "debug/reactor",
    "debug/memory",
    "debug/stacks",
    "debug/log-level",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response, or, in ``problem``, the reason why there is none."""

    status: int = 0
    body: str = ""
    problem: str | None = None


def fetch(host: str, port: int, path: str, seconds: float = PAGE_SECONDS) -> Reply:
    """Get a page within ``seconds``, however slowly it arrives."""
    where = join_authority(host, port)
    request = f"GET /{path} HTTP/1.0\r\nHost: {where}\r\n\r\n".encode()
    deadline = time.monotonic() + seconds
    data = bytearray()
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            connection.sendall(request)
            while len(data) <= MAX_BYTES:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                connection.settimeout(left)
                piece = connection.recv(65536)
                if not piece:
                    break
                data += piece
    except ConnectionRefusedError:
        return Reply(problem=f"nothing listens on {where}")
    except TimeoutError:
        return Reply(problem=f"no answer from {where} within {seconds:g} s")
    except OSError as error:
        return Reply(problem=f"{where}: {error.strerror or error}")
    head, _, body = bytes(data[:MAX_BYTES]).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return Reply(problem=f"{where} does not answer in HTTP: another program listens there")
    return Reply(int(words[1]), body.decode("utf-8", "backslashreplace"))


def page_parts(program: str, host: str, port: int) -> Iterator[Part]:
    """Get every page; stop after the first one without a response."""
    problem: str | None = None
    for path in PAGES:
        name = f"pages/{path.replace('/', '-') or 'status'}"
        if problem is not None:
            yield Part(name, f"not requested: {problem}\n")
            continue
        reply = fetch(host, port, path)
        if reply.problem is not None:
            problem = reply.problem
            yield Part(name, f"{problem}\n", (_no_response(program, problem),))
        else:
            findings = _FINDINGS.get(path, lambda program, reply: ())(program, reply)
            yield Part(name, f"HTTP {reply.status}\n\n{reply.body}", tuple(findings))


def _no_response(program: str, problem: str) -> str:
    if "nothing listens" in problem:
        return f"{program} does not run here, or with another meta port: {problem}."
    if "no answer" in problem:
        return f"{program} hangs or is overloaded: {problem}."
    return f"{program} could not be queried: {problem}."


def _readiness(program: str, reply: Reply) -> Iterator[str]:
    lines = [line.partition(": ") for line in reply.body.splitlines()]
    wrong = [f"{name}: {text}" for name, colon, text in lines if colon and text != "ok"]
    if reply.status != 200:
        yield f"{program} is not ready: {'; '.join(wrong) or 'no reason given'}."
    elif wrong:
        yield f"{program} is ready, with warnings: {'; '.join(wrong)}."


def _agents(program: str, reply: Reply) -> Iterator[str]:
    sessions = _parsed(reply)
    if not isinstance(sessions, list):
        return
    lost = [str(each.get("node")) for each in sessions if not each.get("connected")]
    if lost:
        named = ", ".join(lost[:5]) + (" and others" if len(lost) > 5 else "")
        yield (
            f"{len(lost)} of {len(sessions)} sessions have lost their connection and wait for"
            f" their peer: {named}."
        )


def _reactor(program: str, reply: Reply) -> Iterator[str]:
    stats = _parsed(reply)
    if not isinstance(stats, dict):
        return
    worst = stats.get("lag_seconds", {}).get("worst_of_last_minute", 0.0)
    if worst > LAG_SECONDS:
        yield (
            f"The reactor of {program} was late by up to {worst:.1f} s in the last minute: the"
            " process has too much to do, or too little CPU."
        )


_FINDINGS = {"readyz": _readiness, "agents": _agents, "debug/reactor": _reactor}


def _parsed(reply: Reply) -> Any:
    """Return the parsed JSON, or ``None`` if it is invalid."""
    try:
        return json.loads(reply.body) if reply.status == 200 else None
    except ValueError:
        return None
