"""Fuzz targets of yurthub: requests, and the API's lists and watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tests.fuzz.cases import PLAN, Target, cut
from tests.hub.media.goldens import golden
from tests.hub.media.protobuf_encoding import MAGIC, field, message
from tests.hub.media.support import codec_of, read_list, read_watch, written_list
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import HeadError, HeadLimits, RequestHead, RequestHeadReader
from yurttunnel.hub.cache.selectors import scope_of
from yurttunnel.hub.media.interfaces import ICodec, Item
from yurttunnel.hub.request.parsing import parse_request
from yurttunnel.hub.request.requests import Form
from yurttunnel.kube.protobuf_fields import BadBody

MAX_ITEM = 2000

Pieces = Iterable[bytes]


def _read(read: Callable[..., Any], codec: ICodec, pieces: Pieces) -> Any:
    """Return what ``read`` returns; ``None`` for an invalid body."""
    try:
        return read(codec, pieces, MAX_ITEM)
    except BadBody as error:
        assert len(str(error)) < 300 and "\n" not in str(error), "the reason is too long"
        return None


def check_list(codec: ICodec, case: bytes) -> bool:
    """However it is split, a list has the same items, and can be built from them."""
    found = _read(read_list, codec, [case[PLAN:]])
    assert found == _read(read_list, codec, cut(case)), "the result depends on the splitting"
    if found is None:
        return False
    items, meta = found
    assert all(len(item.body) <= MAX_ITEM for item in items), "an item is too large"
    written = written_list(codec, meta, [item.body for item in items])
    again, meta_again = read_list(codec, [written], MAX_ITEM)
    # Which items are pods is unknown while the list's type follows them.
    assert [_of_any_kind(item) for item in again] == [_of_any_kind(item) for item in items]
    assert meta_again == meta, "it changes when it is encoded again"
    return True


def _of_any_kind(item: Item) -> Item:
    return item._replace(node="")


def check_json_list(case: bytes) -> bool:
    """A list in JSON has the items that Python's JSON parser finds in it."""
    codec = codec_of("json")
    accepted = check_list(codec, case)
    if accepted:
        text = case[PLAN:].decode("utf-8", "surrogateescape")
        value = json.loads(text, strict=False)
        items, meta = read_list(codec, [case[PLAN:]], MAX_ITEM)
        names = [one["metadata"]["name"] for one in value["items"] or ()]
        assert [item.name for item in items] == names, "the items differ"
        assert f"{meta.type.kind}List" == value["kind"], "the kind differs"
    return accepted


def check_watch(codec: ICodec, case: bytes) -> bool:
    """However it is split, a watch has the same events, and they can be encoded again."""
    found = _read(read_watch, codec, [case[PLAN:]])
    assert found == _read(read_watch, codec, cut(case)), "the result depends on the splitting"
    for event in found or ():
        if event.item is None:
            frame = codec.watch_event(event.type, event.meta, event.status)
        elif event.type == "BOOKMARK":
            frame = codec.bookmark(event.meta, event.item.version, event.initial_events_end)
        else:
            frame = codec.watch_event(event.type, event.meta, event.item.body)
        (again,) = read_watch(codec, [frame])
        assert again[:2] == event[:2] and again.item == event.item, (
            "it changes when it is encoded again"
        )
    return bool(found)


JSON_LIST = Target(
    "hub-json-list",
    check_json_list,
    [
        golden("pods.json")[:-3],
        golden("page.json"),
        golden("empty.json")[:-3],
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[',
        b' {"items" : [ ',
    ],
    [
        b'{"metadata":{"name":"a"}}',
        b',{"metadata":{"name":"b","labels":{"x":"y"}},"spec":[{"metadata":{}},{"metadata":{}}]}',
        b'{"kind":"Pod","metadata":{"name":"c},{\\"metadata\\":"}},',
        b"]}",
        b"]}",
        b"],",
        b'"kind":"PodList","apiVersion":"v1"}',
        b'"future":[{}]',
        b",",
        b" \n",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"null",
        b"\xff",
        b"1" * 100,
        b" " * 1500,
    ],
)

JSON_WATCH = Target(
    "hub-json-watch",
    partial(check_watch, codec_of("json")),
    [b"", golden("watch.json"), *golden("watch.json").splitlines(keepends=True)],
    [
        *golden("watch.json").splitlines(keepends=True),
        b'{"type":"ADDED","object":{"kind":"A","apiVersion":"v1","metadata":{"name":"a"}}}',
        b'{ "type" : "BOOKMARK",\n "object" : {\n}\n}',
        b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1"}}\n',
        b"\n",
        b" ",
        b"}\n",
        b"{",
        b'"',
        b"\\",
        b"\xff",
        b"{}" * 800,
    ],
)

_POD = field(1, field(1, "a") + field(6, "7") + field(11, field(1, "x") + field(2, "y")))
_TYPE = field(1, message("TypeMeta", {"apiVersion": "v1", "kind": "PodList"}))
PROTOBUF_LIST = Target(
    "hub-protobuf-list",
    partial(check_list, codec_of("protobuf")),
    [
        golden("pods.pb"),
        golden("page.pb"),
        golden("empty.pb"),
        MAGIC + _TYPE,
        MAGIC + _TYPE + b"\x12\x7f" + field(2, _POD),
        MAGIC + _TYPE + b"\x12\xff\x01" + field(1, field(2, "9")) + field(2, _POD),
    ],
    [
        field(2, _POD),
        field(2, field(2, _POD) * 3),
        field(1, field(2, "9")),
        field(3, ""),
        field(4, ""),
        field(2000, 2**64 - 1),
        b"\x12" + b"\xff" * 8 + b"\x7f",
        b"\x80" * 10,
        b"\x0b",
        bytes(9),
    ],
)
PROTOBUF_WATCH = Target(
    "hub-protobuf-watch",
    partial(check_watch, codec_of("protobuf")),
    [b"", golden("watch.pb"), golden("watch.pb")[:400]],
    [
        golden("watch.pb"),
        (2**31).to_bytes(4),
        (9).to_bytes(4),
        bytes(4),
        field(1, "ADDED"),
        field(2, field(1, golden("page.pb"))),
        b"\xff" * 9,
    ],
)

LISTS_AND_WATCHES = (JSON_LIST, JSON_WATCH, PROTOBUF_LIST, PROTOBUF_WATCH)


def check_request(case: bytes) -> bool:
    """The names in a request's path are valid names, or the request is rejected with 400."""
    try:
        head = RequestHeadReader(HeadLimits()).feed(
            b"GET " + case[PLAN:] + b" HTTP/1.1\r\nHost: localhost:10261\r\n\r\n"
        )
    except HeadError:
        return False
    if not isinstance(head, RequestHead):
        return False
    try:
        request = parse_request(head)
        if request.resource is not None:
            scope_of("kubelet", request, Form("json"))
    except RequestFailed as error:
        assert error.status == 400 and len(error.text) < 40_000, "the error is not a short 400"
        return False
    segments = request.path[1:].split("/") if request.path != "/" else []
    for name in (*segments, *filter(None, (request.namespace, request.name))):
        assert name not in ("", ".", "..") and not set(name) & set("/%"), (
            f"{name!r} is not a valid name"
        )
    return True


REQUEST = Target(
    "hub-request",
    check_request,
    [b"/api/v1", b"/apis/apps/v1", b"/api/v1/namespaces/n/pods", b"/version", b"/", b""],
    [
        b"/namespaces/n",
        b"/watch",
        b"/pods",
        b"/p/status",
        b"/proxy/a//..",
        b"/%2e%2e",
        b"%2f",
        b"%c3%a4" * 50,
        b"%00",
        b"?labelSelector=a%20in%20(b,c),!d",
        b"?fieldSelector=metadata.name%3Dx,spec.nodeName!%3Dy",
        b"&watch=true&limit=5",
        b"&timeoutSeconds=9",
        b"&resourceVersion=%",
        b"//",
    ],
)
