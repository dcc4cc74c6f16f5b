"""Fuzz targets of texts: paths of requests, lists of siblings' nodes, and log lines."""

from __future__ import annotations

import json

from twisted.logger import LogEvent, LogLevel

from tests.fuzz.cases import PLAN, Target
from yurttunnel.http.head import HeadError, HeadLimits, RequestHead, RequestHeadReader
from yurttunnel.ops.log_output import json_line, text_line
from yurttunnel.server.audit_log import MAX_LINE, format_line
from yurttunnel.server.audit_requests import subject_of
from yurttunnel.server.frontends.kubelet.request import follows, path_class_of
from yurttunnel.server.frontends.kubelet.resolution import pod_in
from yurttunnel.server.redaction import MAX_QUOTED, redacted
from yurttunnel.server.siblings.feed import BadEntry, NodeEntry, decode_line, encode_entry

SECRET = "s3cret"
"""A secret that must not get into a log."""


def check_path(case: bytes) -> bool:
    """The description of a request's target consists of printable words."""
    try:
        head = RequestHeadReader(HeadLimits()).feed(
            b"GET " + case[PLAN:] + b" HTTP/1.1\r\nHost: edge-1:10250\r\n\r\n"
        )
    except HeadError:
        return False
    if not isinstance(head, RequestHead):
        return False
    follows(head)
    assert path_class_of(head).isalpha() or path_class_of(head)[1:].isalpha()
    description = subject_of(head.target)
    for word in description.values():
        assert isinstance(word, str) and len(word) <= 253 and word.isascii(), (
            f"the description has {word!r}"
        )
        assert not set(word) & set(" \t\r\n/?&=%\"'\\"), f"the description has {word!r}"
    pod = pod_in(head.target)
    if pod is not None and description.get("pod", "other") != "other":
        assert description["namespace"] in (pod.namespace, "other"), (
            "the description is of another pod"
        )
        assert description["pod"] == pod.name, "the description is of another pod"
    return True


def check_sibling(case: bytes) -> bool:
    """A line of a sibling is equal when it is formatted and parsed again, or it is rejected."""
    try:
        entry = decode_line(case[PLAN:])
    except BadEntry as error:
        assert str(error).isprintable(), "the reason is not printable"
        return False
    if isinstance(entry, NodeEntry):
        assert decode_line(encode_entry(entry)) == entry, "it changes when it is encoded again"
    return True


def check_line(case: bytes) -> bool:
    """A quoted text forges no line in the log or the audit log."""
    text = case[PLAN:].decode("utf-8", "surrogateescape")
    event: LogEvent = {
        "log_format": "from {who}",
        "log_level": LogLevel.info,
        "log_namespace": "part",
        "log_time": 1.0,
        "who": text,
    }
    first, *others = (text_line(event) or "").encode("utf-8").decode("utf-8").split("\n")
    assert first.startswith("1970-01-01T00:00:01+0000 [part#info] from "), "the line is lost"
    assert others[-1] == "" and all(each.startswith("\t") for each in others[:-1]), "several lines"
    printable = first + "".join(others)
    assert not any(ord(each) < 32 and each != "\t" for each in printable), "control characters"
    written = json_line(event) or ""
    assert written.isascii() and written.count("\n") == 1, "several lines"
    assert json.loads(written)["who"] == text, "the field has changed"
    audited = format_line({"who": text, "reason": text, "status": 400})
    assert audited.isascii() and audited.count(b"\n") == 1 and len(audited) <= MAX_LINE + 1
    assert json.loads(audited)["status"] == 400
    return True


def check_quoted(case: bytes) -> bool:
    """The parts before an ``@`` and after a ``?`` are never quoted."""
    text = case[PLAN:].decode("latin-1")
    quoted = redacted(text)
    assert len(quoted) <= MAX_QUOTED + 3, "it is too long"
    for word in quoted.split():
        before, at, _ = word.rpartition("@")
        assert not at or SECRET not in before, "user information is quoted"
        assert SECRET not in word.partition("?")[2], "a query is quoted"
    return SECRET in text


PATH = Target(
    "path",
    check_path,
    [b"/exec", b"/containerLogs", b"/metrics", b"//exec", b"/%65xec", b"/portForward", b"*"],
    [
        b"/default",
        b"/web",
        b"/%2e%2e",
        b"/..",
        b"/%00",
        b"/\xff",
        b"%2f",
        b"?command=" + SECRET.encode(),
        b"&follow=true",
        b"/" + b"a" * 300,
        b";x",
        b"#y",
    ],
)
SIBLING = Target(
    "sibling",
    check_sibling,
    [
        b'{"number":1,"node":"edge-1","identifiers":"host=edge-1","draining":false}',
        b'{"number":7}',
        b'{"number":4294967295,"node":"a","identifiers":""}',
    ],
    [b"", b"}", b"[" * 3000, b"9" * 30, b'"', b"\\ud800", b"\xff", b',"node":null', b"1e999", b"-"],
)
LINE = Target(
    "line",
    check_line,
    [b"edge-1", b"", b"\n", b"\x1b[2J"],
    [
        b"\r\n2026-07-05T12:30:01+0000 [x#info] forged",
        b"\x00",
        b"\xff\xfe",
        "\u2028\u202e\x85".encode(),
        b'"}\n{',
        b"{who}",
        b"x" * 150,
        "\U0001f600".encode() * 200,
        b"\x7f\x9b",
    ],
)
QUOTED = Target(
    "quoted",
    check_quoted,
    [b"", b"http://", b"edge-1:1", b"is it? No: "],
    [b"u:", SECRET.encode(), b"@", b"?", b"edge-1", b" ", b"\n", b"&", b"'", b"x" * 200, b"\xa0"],
)
