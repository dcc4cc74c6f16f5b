"""Pages of a cached list.

The continue token has the position, and the version and size of the list. If these have changed,
the pages would not belong to one list, and the client has to start again, as with an API server
that no longer has a version. The same applies when the cloud is reachable again: an API server
would reject the token as invalid (400), and clients would give up the list.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

from yurttunnel.hub.cache.interfaces import ICachedList
from yurttunnel.hub.media.interfaces import Item, ListMeta
from yurttunnel.hub.request.requests import ListOptions

_MARK = "yurthub"
"""The first field of the hub's tokens; tokens of an API server do not have it."""


class NotContinued(Exception):
    """The token does not continue this list; the message is one line."""


class Page:
    """The requested part of a list; without a limit the rest of it.

    Raises :class:`NotContinued`.
    """

    def __init__(self, cached_list: ICachedList, options: ListOptions) -> None:
        self._cached_list = cached_list
        # Positions in the whole list: of the next item to read, and the start and end of the page.
        self._read = 0
        self._first = _first(cached_list, options.continue_token) if options.continue_token else 0
        total = len(cached_list.sizes)
        limit = options.limit if options.limit > 0 else total
        self._end = min(self._first + limit, total)
        self.sizes: Sequence[int] = cached_list.sizes[self._first : self._end]
        """The sizes of the items of the page in bytes."""
        self.meta: ListMeta = cached_list.meta
        """The metadata of the page."""
        if self._end < total:
            self.meta = cached_list.meta._replace(
                continue_token=_token(cached_list, self._end), remaining=total - self._end
            )

    async def next(self) -> Sequence[Item]:
        """Return the next items, none at the end."""
        while self._read < self._end:
            piece = await self._cached_list.read()
            begin, self._read = self._read, self._read + len(piece)
            items = piece[max(0, self._first - begin) : self._end - begin]
            if items:
                return items
        return ()


def is_of_hub(token: str) -> bool:
    """Return whether a token continues a list that was begun offline."""
    match _content(token):
        case [mark, *_] if mark == _MARK:
            return True
    return False


def _token(cached_list: ICachedList, end: int) -> str:
    fields = [_MARK, cached_list.meta.version, len(cached_list.sizes), end]
    return urlsafe_b64encode(json.dumps(fields).encode()).decode()


def _first(cached_list: ICachedList, token: str) -> int:
    """Return the number of items before the page that continues with ``token``."""
    match _content(token):
        case [mark, version, int(total), int(first)] if mark == _MARK and first >= 0:
            if (version, total) == (cached_list.meta.version, len(cached_list.sizes)):
                return first
            raise NotContinued("the list has changed since its first page")
    raise NotContinued("the first page of the list came from the Kubernetes API itself")


def _content(token: str) -> object:
    try:
        return json.loads(urlsafe_b64decode(token))
    except (ValueError, binascii.Error, RecursionError):
        return None
