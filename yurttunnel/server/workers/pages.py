"""Pages of ``/debug`` that a worker makes, and the first process asks for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.debug.pages import Answer, Page, Parameters, text
from yurttunnel.server.workers import messages

ANSWER_SECONDS = 10.0
"""Seconds that a worker may take for a page."""

Send = Callable[[str, dict[str, Any]], object]
"""Sends a message, by its kind and its fields; raises ``ValueError`` for one that is too long."""


class AskedPages:
    """What a worker has been asked for, and has not answered yet."""

    def __init__(self, clock: IReactorTime, worker: int, send: Send) -> None:
        self._clock = clock
        self._worker = worker
        self._send = send
        self._numbers = itertools.count(1)
        self._asked: dict[int, Deferred[Answer]] = {}

    def ask(self, name: str, method: bytes, parameters: Parameters) -> Deferred[Answer]:
        """Ask for a page; what keeps the worker from answering is an answer, too."""
        number = next(self._numbers)
        asked = self._asked[number] = Deferred[Answer]()
        fields = {"name": name, "method": method.decode(), "parameters": dict(parameters)}
        self._send(messages.PAGE, {"number": number, **fields})
        late = self._clock.callLater(ANSWER_SECONDS, self._too_late, number)

        def answered(answer: Answer) -> Answer:
            if late.active():
                late.cancel()
            return answer

        return asked.addCallback(answered)

    def answered(self, fields: dict[str, Any]) -> None:
        """Take an answer."""
        content_type, status = fields["content_type"].encode(), fields["status"]
        self._answer(fields["number"], Answer(content_type, fields["body"].encode(), status))

    def end(self) -> None:
        """Report that the worker has ended, to whoever waits."""
        for number in list(self._asked):
            self._answer(number, text(f"worker {self._worker} has ended\n", 503))

    def _too_late(self, number: int) -> None:
        says = f"worker {self._worker} has not answered within {ANSWER_SECONDS:g} s\n"
        self._answer(number, text(says, 504))

    def _answer(self, number: int, answer: Answer) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked.callback(answer)


class AnsweredPages:
    """Answers for the ``pages`` of a worker."""

    _log = Logger()

    def __init__(self, pages: dict[str, Page], send: Send) -> None:
        self._pages = pages
        self._send = send

    def show(self, fields: dict[str, Any]) -> None:
        """Answer a question of the first process."""
        # It ends with the answer, and lets no error through.
        _ = Deferred.fromCoroutine(self._show(**fields))

    async def _show(self, number: int, name: str, method: str, parameters: Parameters) -> None:
        try:
            answer = self._pages[name].answer(method.encode(), parameters)
            if isinstance(answer, Deferred):
                answer = await answer
        except Exception:
            # Whatever it is, somebody waits for an answer; the log has it.
            self._log.failure("a page of /debug could not be made", Failure())
            answer = text("the page could not be made: the log says why\n", 500)
        try:
            self._answer(number, answer)
        except ValueError:
            # It does not fit into one message.
            self._answer(number, text("the page is too long: ask for one ?node=NAME\n", 500))

    def _answer(self, number: int, answer: Answer) -> None:
        fields = {
            "number": number,
            "status": answer.status,
            "content_type": answer.content_type.decode(),
            "body": answer.body.decode(),
        }
        self._send(messages.PAGE_ANSWER, fields)
