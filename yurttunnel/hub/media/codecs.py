"""The codecs of all forms of API bodies."""

from __future__ import annotations

from typing import Final

from yurttunnel.hub.media.interfaces import ICodec
from yurttunnel.hub.media.json_codec import JsonCodec
from yurttunnel.hub.media.json_shapes import PARTIAL, TABLE, Objects, Tables
from yurttunnel.hub.media.protobuf_codec import ProtobufCodec
from yurttunnel.hub.request.requests import Form

JSON: Final = "json"
PROTOBUF: Final = "protobuf"

_KNOWN: Final[dict[tuple[str, str], ICodec]] = {
    (JSON, ""): JsonCodec(Objects()),
    (JSON, PARTIAL): JsonCodec(Objects(PARTIAL)),
    (JSON, TABLE): JsonCodec(Tables()),
    (PROTOBUF, ""): ProtobufCodec(),
    (PROTOBUF, PARTIAL): ProtobufCodec(PARTIAL),
}


def codec_for(form: Form) -> ICodec | None:
    """Return the codec of a form, ``None`` for a Table in protobuf."""
    return _KNOWN.get((form.encoding, form.transform))
