"""Parsing the fields of Services and EndpointSlices, and reporting invalid ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from yurttunnel.cluster.fields import mapping
from yurttunnel.http.authority import parse_address
from yurttunnel.kube.resources import Object
from yurttunnel.proxy.state.virtual_services import Address, Problem

MAX_REPORTED = 10
"""The maximum number of problems of one object that are reported one by one."""

HEADLESS = "service.kubernetes.io/headless"
"""The label that Kubernetes controllers set on the slices of headless Services."""

SERVICE_PROXY_NAME = "service.kubernetes.io/service-proxy-name"
"""The label of objects that another proxy serves."""

LABEL_SELECTOR = f"!{HEADLESS},!{SERVICE_PROXY_NAME}"
"""A label selector for the objects that are served here, the same as kube-proxy's."""

_MAX_QUOTE = 60

_NAME = re.compile("[A-Za-z0-9._-]{1,253}")
"""All kinds of names in the API (RFC 1123 and 1035) match this."""

_SPECIAL_KINDS = {
    "unspecified": "the unspecified address",
    "loopback": "a loopback address",
    "link_local": "a link-local address",
    "multicast": "a multicast address",
}


class Unusable(ValueError):
    """A value that cannot be used; the message continues a sentence that begins with the value."""


class Problems:
    """The problems of one object, of which up to :data:`MAX_REPORTED` are reported."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: list[Problem] = []
        self._more = 0

    def add(self, text: str, what: str = "") -> None:
        """Record a problem of the object, or of ``what``."""
        if len(self._found) < MAX_REPORTED:
            self._found.append(Problem(what or self._what, text))
        else:
            self._more += 1

    def all(self) -> tuple[Problem, ...]:
        """Return the problems."""
        if not self._more:
            return tuple(self._found)
        return (*self._found, Problem(self._what, f"{self._more} more problems are not listed"))


def is_ours(obj: Object) -> bool:
    """Return whether an object has none of the labels of objects that are not served here."""
    labels = labels_of(obj)
    return HEADLESS not in labels and SERVICE_PROXY_NAME not in labels


def labels_of(obj: Object) -> Mapping[str, object]:
    """Return the labels of an object."""
    return mapping(mapping(obj.get("metadata")).get("labels"))


def is_name(given: str) -> bool:
    """Return whether a text can be a name in rules and in the log; the API allows no others."""
    return _NAME.fullmatch(given) is not None


def quoted(value: object) -> str:
    """Return a value for a message, truncated if it is long."""
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _MAX_QUOTE else shown[:_MAX_QUOTE] + "..."


def port_number(value: object) -> int:
    """Return a port number. Raises :class:`Unusable`."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    raise Unusable(f"{quoted(value)} is not a port number from 1 to 65535")


def unicast_address(value: object, allow_local: bool = False) -> Address:
    """Return a unicast address that means the same machine everywhere.

    Raises :class:`Unusable` for anything else, and for addresses that the API accepts neither as an
    external IP nor as an endpoint (``ValidateNonSpecialIP`` of k8s.io/kubernetes
    pkg/apis/core/validation); with ``allow_local``, addresses that mean the machine itself are
    accepted: loopback, and link-local of IPv4.
    """
    if not isinstance(value, str):
        raise Unusable(f"{quoted(value)} is not an IP address")
    return _unicast_address(value, allow_local)


# Each change of an endpoint resends all endpoints of its slice, and parsing is most of the work.
@lru_cache(maxsize=1 << 14)
def _unicast_address(text: str, allow_local: bool) -> Address:
    address = parse_address(text)
    if address is None:
        raise Unusable(f"{quoted(text)} is not an IP address")
    for kind, words in _SPECIAL_KINDS.items():
        means_own = kind == "loopback" or (kind == "link_local" and address.version == 4)
        if getattr(address, f"is_{kind}") and not (allow_local and means_own):
            raise Unusable(f"{address} is {words}")
    return address
