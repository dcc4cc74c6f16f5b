"""Answers that are no objects: versions, discovery and OpenAPI, as the API gave them last."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.offline.paging import READ_SECONDS
from yurttunnel.hub.offline.refusals import Refusals
from yurttunnel.hub.offline.whole_answers import WholeAnswers
from yurttunnel.hub.request.accept import document_forms
from yurttunnel.hub.request.requests import HubCall

EVERYBODY = ""
"""The client of what all share whom the API knows."""


class Documents:
    """Answers with them."""

    def __init__(
        self, clock: IReactorTime, cache: ICache, refusals: Refusals, answers: WholeAnswers
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._refusals = refusals
        self._answers = answers

    async def get(self, call: HubCall) -> None:
        """Answer with a document; raises ``RequestFailed``."""
        path = call.request.path
        for form in document_forms(call.exchange.head):
            document = await self._cache.document(EVERYBODY, path, form).addTimeout(
                READ_SECONDS, self._clock
            )
            if document is not None:
                content_type = document.content_type.encode("latin-1")
                await self._answers.send(call, content_type, document.body)
                return
        # Not 404, which says that there is no such group. kubectl asks for many at its start:
        # each would be asked for again, if the answer said when.
        raise self._refusals.unavailable(f"{path} was never asked for here in this form", False)
