"""Parsing of API requests from their method and target.

The grammar is that of ``RequestInfoFactory.NewRequestInfo`` of k8s.io/apiserver
(pkg/endpoints/request/requestinfo.go), so the hub and the API never interpret a request
differently. Ambiguous requests are rejected: no API resource has such a name
(``IsValidPathSegmentName`` of k8s.io/apimachinery pkg/api/validation/path).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_plus

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.requests import MAX_SELECTORS, ApiRequest, ListOptions, ResourceType
from yurttunnel.kube.selectors import BadSelector, FieldTerm, field_terms

MAX_SEGMENT_LENGTH = 253
"""Maximum length of a path segment in bytes (``DNS1123SubdomainMaxLength`` of
k8s.io/apimachinery)."""

MAX_SEGMENTS = 64
"""Maximum number of path segments; no path of the API has a dozen."""

MAX_PARAMETERS = 1_000
"""Maximum number of query parameters of a list or a watch; the API defines about twenty."""

_MAX_ENCODED = 3 * MAX_SELECTORS
"""Maximum length of a parameter that is decoded: a selector in which each character is encoded.
Decoding the longest query that fits into a head would take a tenth of a second."""

_MAX_REMEMBERED = 1024
_REMEMBERED = 2048
"""The number of remembered targets; with their maximum length they take some MiB at most."""

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_BAD_ENCODING = re.compile("%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_PARAMETERS = {
    "labelSelector": "label_selector",
    "fieldSelector": "field_selector",
    "limit": "limit",
    "continue": "continue_token",
    "resourceVersion": "resource_version",
    "resourceVersionMatch": "resource_version_match",
    "timeoutSeconds": "timeout_seconds",
    "sendInitialEvents": "send_initial_events",
    "allowWatchBookmarks": "allow_watch_bookmarks",
    "watch": "watch",
}
_NUMBERS = frozenset({"limit", "timeoutSeconds"})
_FLAGS = frozenset({"sendInitialEvents", "allowWatchBookmarks", "watch"})


def parse_request(head: RequestHead) -> ApiRequest:
    """Return the parsed request.

    Query parameters are parsed only for lists and watches. Of parameters that are not in
    :class:`ListOptions` only the name is checked; no client encodes names. Raises ``RequestFailed``
    (400) for a request that cannot refer to anything in the API.
    """
    if len(head.target) > _MAX_REMEMBERED:
        return _parse(head.method, head.target)
    return _remembered(head.method, head.target)


def _parse(method: bytes, target: bytes) -> ApiRequest:
    path, _, query = target.decode("latin-1").partition("?")
    parts = _segments(path)
    verb = _VERBS.get(method.decode("ascii"), method.decode("ascii").lower())
    match parts:
        case ["api", version, first, *rest]:
            group = ""
        case ["apis", group, version, first, *rest]:
            pass
        case _:
            verb = "get" if method == b"HEAD" else method.decode("ascii").lower()
            return ApiRequest(verb, "/" + "/".join(parts))
    if first == "watch":
        if not rest:
            raise _bad("its path names no resource to watch")
        verb, (first, *rest) = "watch", rest
    namespace = ""
    if first == "namespaces" and len(rest) > 1 and rest[1] not in _NAMESPACE_SUBRESOURCES:
        namespace, first, *rest = rest
    name, subresource = (*rest, "", "")[:2]
    options = ListOptions()
    if verb == "watch" or (not name and verb == "get"):
        options, watch = _list_options(query)
        if verb == "get":
            verb = "watch" if watch else "list"
        if name:
            # A watch of a single object, with the deprecated prefix (ListResource of
            # k8s.io/apiserver pkg/endpoints/handlers/get.go).
            options = replace(options, field_selector=_selecting(name, options.field_selector))
        else:
            name = _selected_name(options.field_selector)
    elif not name and verb == "delete":
        verb = "deletecollection"
    resource = ResourceType(group, version, first)
    return ApiRequest(verb, "/" + "/".join(parts), resource, namespace, name, subresource, options)


_remembered = lru_cache(_REMEMBERED)(_parse)


def _segments(path: str) -> list[str]:
    """Return the decoded segments of a path; of a proxied path, those that the API evaluates.

    A trailing slash is ignored. The part after ``/proxy`` is for a pod, a Service or a node, and
    may have any content.
    """
    if not path.startswith("/"):
        raise _bad("its target is not a path that begins with a slash")
    # One segment more than the limit is enough to detect an excess.
    parts = path[1:].split("/", MAX_SEGMENTS)
    if parts[-1] == "":
        del parts[-1]
    subresource = 6 if parts[2:3] == ["namespaces"] else 4
    if parts[:1] == ["api"] and parts[subresource : subresource + 1] == ["proxy"]:
        del parts[subresource + 1 :]
    if len(parts) > MAX_SEGMENTS:
        raise _bad(f"its path has more than {MAX_SEGMENTS} names")
    if "%" in path:
        parts = [_decoded(part) for part in parts]
    for part in parts:
        if part in ("", ".", ".."):
            raise _bad(f"its path has {part!r} where a name has to be")
        if len(part) > MAX_SEGMENT_LENGTH or (
            not part.isascii() and len(part.encode()) > MAX_SEGMENT_LENGTH
        ):
            raise _too_long()
    return parts


def _too_long() -> RequestFailed:
    return _bad(f"its path has a name of more than {MAX_SEGMENT_LENGTH} bytes")


def _decoded(part: str) -> str:
    if len(part) > 3 * MAX_SEGMENT_LENGTH:
        raise _too_long()
    if _BAD_ENCODING.search(part):
        raise _bad("its path has a percent sign that two hexadecimal digits do not follow")
    try:
        text = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _bad("its path is not UTF-8") from None
    if "/" in text or "%" in text:
        raise _bad("its path has an encoded slash or percent sign, which no name has")
    if _CONTROL.search(text):
        raise _bad("its path has an encoded control character")
    return text


def _list_options(query: str) -> tuple[ListOptions, bool]:
    """Return the options of a list or a watch, and whether the query requests a watch."""
    if query.count("&") >= MAX_PARAMETERS:
        raise _bad(f"its query has more than {MAX_PARAMETERS} parameters")
    found: dict[str, Any] = {}
    for pair in query.split("&"):
        parameter, _, text = pair.partition("=")
        if "%" in parameter or "+" in parameter:
            raise _bad("its query has a parameter whose name is percent-encoded")
        # The API ignores pairs with a semicolon (Go's net/url).
        if ";" in pair:
            continue
        # As in the API, the first of several values is used.
        field = _PARAMETERS.get(parameter)
        if field is not None and field not in found:
            found[field] = _value(parameter, text)
    watch = bool(found.pop("watch", False))
    return ListOptions(**found), watch


def _value(parameter: str, text: str) -> str | int | bool:
    if len(text) <= _MAX_ENCODED and ("%" in text or "+" in text):
        text = _decoded_value(parameter, text)
    if parameter in _FLAGS:
        # Convert_Slice_string_To_bool of k8s.io/apimachinery pkg/runtime/conversion.go.
        return text != "0" and text.lower() != "false"
    if parameter not in _NUMBERS:
        return text
    if not text:
        return 0
    if not _NUMBER.fullmatch(text):
        raise _bad(f"{parameter} is not a whole number")
    return int(text)


def _decoded_value(parameter: str, text: str) -> str:
    bad = _bad(f"{parameter} in its query is not percent-encoded UTF-8")
    if _BAD_ENCODING.search(text):
        raise bad
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError:
        raise bad from None


def _selecting(name: str, field_selector: str) -> str:
    """Return a field selector with an additional requirement for a name."""
    term = str(FieldTerm("metadata.name", True, name))
    return term if field_selector in ("", term) else f"{term},{field_selector}"


def _selected_name(field_selector: str) -> str:
    """Return the name that a field selector requires, or an empty string.

    An invalid selector requires none; the evaluation of the selector reports the error. A selector
    that is too long is not parsed.
    """
    if len(field_selector) > MAX_SELECTORS or "metadata.name" not in field_selector:
        return ""
    try:
        terms = field_terms(field_selector)
    except BadSelector:
        return ""
    for term in terms:
        if term.field == "metadata.name" and term.same and term.value not in ("", ".", ".."):
            return "" if "/" in term.value or "%" in term.value else term.value
    return ""


def _bad(text: str) -> RequestFailed:
    return RequestFailed(400, f"the request is not one to the Kubernetes API: {text}")
