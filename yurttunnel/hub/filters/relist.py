"""What tells the client of a watch to list again: the API's own word for that, 410 Expired.

A watch that only ends is begun again by reflectors where it ended, without a list
(``ListAndWatch`` of k8s.io/client-go tools/cache/reflector.go).
"""

from __future__ import annotations

from yurttunnel.http.errors import RequestFailed, status_content
from yurttunnel.hub.media.interfaces import IMedia, TypeMeta
from yurttunnel.hub.media.json_watches import event_form
from yurttunnel.hub.media.protobuf_fields import bytes_form, varint_form
from yurttunnel.hub.media.protobuf_media import ProtobufMedia

_EXPIRED = RequestFailed(410, "what yurthub filters for this client has changed: list again")


def relist_frame(media: IMedia) -> bytes:
    """Return the last frame of a watch."""
    if isinstance(media, ProtobufMedia):
        return media.watch_event("ERROR", TypeMeta("v1", "Status"), _protobuf())
    # So it is within Tables, too.
    return event_form("ERROR", status_content(_EXPIRED)[1].strip())


def _protobuf() -> bytes:
    """Return the message, whose fields are numbered in k8s.io/apimachinery meta/v1."""
    texts = ((2, b"Failure"), (3, _EXPIRED.text.encode()), (4, b"Expired"))
    written = b"".join(bytes_form(number, content) for number, content in texts)
    return written + varint_form(6 << 3) + varint_form(_EXPIRED.status)
