"""``?worker=N``: pages of a further process of the server (``--workers``), which the first asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from twisted.internet.defer import Deferred

from yurttunnel.ops.debug.pages import Answer, BadParameter, Page, Parameters, text


class AsksWorkers(Protocol):
    """The workers of a server, as far as they answer for pages."""

    def pids(self) -> Mapping[int, int]:
        """Return the process of each worker that runs, by its number."""

    def sessions_of(self, node: str | None) -> Mapping[int, int]:
        """Return how many sessions each worker has, with ``node`` or with all, by its number."""

    def ask_page(
        self, worker: int, name: str, method: bytes, parameters: Parameters
    ) -> Deferred[Answer]:
        """Have a worker that runs answer for the page ``name``; the answer comes in any case."""


FindWorkers = Callable[[], AsksWorkers | None]
"""Gives them, ``None`` where there are none."""


def with_workers(name: str, page: Page, find: FindWorkers) -> Page:
    """Make the page that answers as ``page``, of this process or of the one that is asked for."""

    def answer(method: bytes, parameters: Parameters) -> Answer | Deferred[Answer]:
        rest = {key: value for key, value in parameters.items() if key != "worker"}
        if len(rest) == len(parameters):
            return page.answer(method, parameters)
        workers = find()
        if workers is None:
            raise BadParameter("there is no worker: this process is the only one")
        running = {str(number): number for number in workers.pids()}
        if parameters["worker"] not in running:
            known = ", ".join(running) or "none"
            return text(f"no worker has this number; those that run now: {known}\n", 404)
        return workers.ask_page(running[parameters["worker"]], name, method, rest)

    post = partial(answer, b"POST") if b"POST" in page.methods else None
    return Page(partial(answer, b"GET"), post, (*page.parameters, "worker"))


def describe_workers(find: FindWorkers, node: str | None) -> dict[str, object]:
    """Return, beside this process's sessions, who has others; nothing without workers."""
    workers = find()
    if workers is None:
        return {}
    pids, sessions = workers.pids(), workers.sessions_of(node)
    return {
        "sessions_of_workers": [
            {"worker": number, "pid": pid, "sessions": sessions.get(number, 0)}
            for number, pid in pids.items()
        ],
        "hint_on_workers": "?worker=N tells of those in a worker",
    }
