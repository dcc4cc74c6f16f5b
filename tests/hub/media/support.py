"""Helpers for tests of media."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.interfaces import ICodec, Item, ListMeta, WatchEvent
from yurttunnel.hub.request.requests import Form

MAX_ITEM = 10_000


def codec_of(encoding: str, transform: str = "") -> ICodec:
    """Return the codec of a form."""
    found = codec_for(Form(encoding, transform, "v1" if transform else ""))
    assert found is not None
    return found


def read_list(
    codec: ICodec, pieces: Iterable[bytes], max_item: int = MAX_ITEM
) -> tuple[list[Item], ListMeta]:
    """Parse a list; return its items and metadata."""
    reader = codec.list_reader(max_item)
    items = [item for piece in pieces for item in reader.feed(piece)]
    return items, reader.finish()


def read_watch(
    codec: ICodec, pieces: Iterable[bytes], max_item: int = MAX_ITEM
) -> list[WatchEvent]:
    """Parse a watch; return its events."""
    reader = codec.watch_reader(max_item)
    return [event for piece in pieces for event in reader.feed(piece)]


def written_list(codec: ICodec, meta: ListMeta, bodies: list[bytes]) -> bytes:
    """Build a list, a few items at a time; check that its length is known before."""
    writer = codec.list_writer(meta, [len(body) for body in bodies])
    parts = [writer.head, writer.items(bodies[:1]), writer.items([]), writer.items(bodies[1:])]
    body = b"".join([*parts, writer.tail])
    assert writer.length == len(body), (
        f"{writer.length} bytes were announced, there are {len(body)}"
    )
    return body


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Split data in two at every byte, and into single bytes."""
    for at in range(len(data) + 1):
        yield [data[:at], data[at:]]
    yield [data[begin:end] for begin, end in pairwise(range(len(data) + 1))]
