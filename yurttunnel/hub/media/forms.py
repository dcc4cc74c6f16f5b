"""The codecs of all forms of API bodies."""

from __future__ import annotations

from typing import Final

from yurttunnel.hub.media.interfaces import IMedia
from yurttunnel.hub.media.json_media import JsonMedia
from yurttunnel.hub.media.json_shapes import PARTIAL, TABLE, Objects, Tables
from yurttunnel.hub.media.protobuf_media import ProtobufMedia
from yurttunnel.hub.request.requests import Form

JSON: Final = "json"
PROTOBUF: Final = "protobuf"

_KNOWN: Final[dict[tuple[str, str], IMedia]] = {
    (JSON, ""): JsonMedia(Objects()),
    (JSON, PARTIAL): JsonMedia(Objects(PARTIAL)),
    (JSON, TABLE): JsonMedia(Tables()),
    (PROTOBUF, ""): ProtobufMedia(),
    (PROTOBUF, PARTIAL): ProtobufMedia(PARTIAL),
}


def media_for(form: Form) -> IMedia | None:
    """Return the codec of a form, ``None`` for a Table in protobuf."""
    return _KNOWN.get((form.media, form.transform))
