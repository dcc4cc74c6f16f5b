"""Pages of a list that is read from the cache.

The token of a page says how far it went, and in which list: the version and the number of objects.
If these have changed meanwhile, the pages would not be those of one list, and the client has to
begin anew, as with an API server that has forgotten a version. So it has to when the cloud is back:
an API server would call the token invalid (400), with which clients give the list up.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

from yurttunnel.hub.cache.interfaces import IListed
from yurttunnel.hub.media.interfaces import Item, ListMeta
from yurttunnel.hub.request.requests import ListOptions

_MARK = "yurthub"
"""What the tokens of an API server do not begin with."""


class NotContinued(Exception):
    """A token that does not continue this list; one line says why."""


class Page:
    """The part of a list that is asked for, all of it without a limit.

    Raises :class:`NotContinued`.
    """

    def __init__(self, listed: IListed, options: ListOptions) -> None:
        self._listed = listed
        # Of the whole list: what has been read, where the page begins, and where it ends.
        self._read = 0
        self._first = _first(listed, options.continue_token) if options.continue_token else 0
        total = len(listed.sizes)
        limit = options.limit if options.limit > 0 else total
        self._end = min(self._first + limit, total)
        self.sizes: Sequence[int] = listed.sizes[self._first : self._end]
        """Bytes of the items of the page."""
        self.meta: ListMeta = listed.meta
        """What the page says beside its items."""
        if self._end < total:
            self.meta = listed.meta._replace(
                continue_token=_token(listed, self._end), remaining=total - self._end
            )

    async def next(self) -> Sequence[Item]:
        """Return the next items, none at the end."""
        while self._read < self._end:
            piece = await self._listed.read()
            begin, self._read = self._read, self._read + len(piece)
            items = piece[max(0, self._first - begin) : self._end - begin]
            if items:
                return items
        return ()


def is_of_hub(token: str) -> bool:
    """Return whether a token continues a list that was begun without the cloud."""
    if not token:
        return False
    match _content(token):
        case [mark, *_] if mark == _MARK:
            return True
    return False


def _token(listed: IListed, end: int) -> str:
    fields = [_MARK, listed.meta.version, len(listed.sizes), end]
    return urlsafe_b64encode(json.dumps(fields).encode()).decode()


def _first(listed: IListed, token: str) -> int:
    """Return how many items are before the page that continues with ``token``."""
    match _content(token):
        case [mark, version, int(total), int(first)] if mark == _MARK and first >= 0:
            if (version, total) == (listed.meta.version, len(listed.sizes)):
                return first
            raise NotContinued("the list has changed since its first page")
    raise NotContinued("the first page of the list came from the Kubernetes API itself")


def _content(token: str) -> object:
    try:
        return json.loads(urlsafe_b64decode(token))
    except (ValueError, binascii.Error, RecursionError):
        return None
