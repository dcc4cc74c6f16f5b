"""Fields of the objects that Services are made of, and sentences about those that are wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from yurttunnel.cluster.fields import mapping
from yurttunnel.http.authority import address_in
from yurttunnel.kube.resources import Object
from yurttunnel.proxy.state.virtual_services import Address, Problem

MOST_TOLD = 10
"""How many problems of one object are told one by one."""

HEADLESS = "service.kubernetes.io/headless"
"""What the controllers of Kubernetes label the slices of headless Services with."""

SERVICE_PROXY_NAME = "service.kubernetes.io/service-proxy-name"
"""The label of what another proxy serves."""

OURS = f"!{HEADLESS},!{SERVICE_PROXY_NAME}"
"""A label selector for what is served here; that of kube-proxy."""

_LONGEST_QUOTE = 60

_NAME = re.compile("[A-Za-z0-9._-]{1,253}")
"""What kinds of names there are in the API (RFC 1123 and 1035) is part of that."""

_SPECIAL = {
    "unspecified": "the unspecified address",
    "loopback": "a loopback address",
    "link_local": "a link-local address",
    "multicast": "a multicast address",
}


class Unusable(ValueError):
    """A value that cannot be used; the message is the end of a sentence that begins with it."""


class Problems:
    """What is wrong with one object, told up to :data:`MOST_TOLD`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: list[Problem] = []
        self._more = 0

    def add(self, text: str, what: str = "") -> None:
        """Keep a sentence about the object, or else about ``what``."""
        if len(self._found) < MOST_TOLD:
            self._found.append(Problem(what or self._what, text))
        else:
            self._more += 1

    def all(self) -> tuple[Problem, ...]:
        """Return them."""
        if not self._more:
            return tuple(self._found)
        return (*self._found, Problem(self._what, f"{self._more} more of it is wrong"))


def is_ours(obj: Object) -> bool:
    """Return whether an object has not the labels of what is not served here."""
    labels = labels_of(obj)
    return HEADLESS not in labels and SERVICE_PROXY_NAME not in labels


def labels_of(obj: Object) -> Mapping[str, object]:
    """Return the labels of an object."""
    return mapping(mapping(obj.get("metadata")).get("labels"))


def is_name(given: str) -> bool:
    """Return whether a text may be a name in rules and in the log; the API has no others."""
    return _NAME.fullmatch(given) is not None


def quoted(value: object) -> str:
    """Return a value for a sentence, which is not longer for a value that is."""
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _LONGEST_QUOTE else shown[:_LONGEST_QUOTE] + "..."


def port_number(value: object) -> int:
    """Return a port. Raises :class:`Unusable`."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    raise Unusable(f"{quoted(value)} is no port number from 1 to 65535")


def unicast_address(value: object, or_own: bool = False) -> Address:
    """Return an address that means one machine, the same one everywhere.

    Raises :class:`Unusable` for what is none, and for what the API takes neither for an external
    IP nor for an endpoint (``ValidateNonSpecialIP`` of k8s.io/kubernetes pkg/apis/core/validation);
    with ``or_own`` those will do that mean this machine on it: loopback, and link-local of IPv4.
    """
    if not isinstance(value, str):
        raise Unusable(f"{quoted(value)} is not an IP address")
    return _unicast_address(value, or_own)


# All endpoints of a slice come anew with each change of one, and reading them is most of the work.
@lru_cache(maxsize=1 << 14)
def _unicast_address(text: str, or_own: bool) -> Address:
    address = address_in(text)
    if address is None:
        raise Unusable(f"{quoted(text)} is not an IP address")
    for kind, words in _SPECIAL.items():
        means_own = kind == "loopback" or (kind == "link_local" and address.version == 4)
        if getattr(address, f"is_{kind}") and not (or_own and means_own):
            raise Unusable(f"{address} is {words}")
    return address
