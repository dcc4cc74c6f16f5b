"""What all pages below ``/debug`` have in common: access, methods, parameters, and answers.

They are for programs and people on the same machine, and for no web page they look at. The meta
port may listen on other addresses than loopback, and a browser on this machine carries
requests of whatever page is open in it. So the address of the client has to be loopback, the Host
field has to name it (against names that are made to lead here, DNS rebinding), and a browser has
to say that the request is of no other site (Fetch Metadata, and Origin of RFC 6454). An agent
makes connections for callers of the tunnel, who are elsewhere: they come from loopback, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twisted.internet.address import IPv4Address as TcpAddress
from twisted.internet.address import IPv6Address as Tcp6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import Request
from twisted.web.resource import Resource, getChildForRequest

from yurttunnel.http.authority import Address
from yurttunnel.ops.http_site import ANSWERED_LATER, PageRequest
from yurttunnel.ops.rebinding import asked_host, is_loopback, is_of_another_page

TEXT = b"text/plain; charset=utf-8"
JSON = b"application/json"
HTML = b"text/html; charset=utf-8"

IsTunnelled = Callable[[IAddress, IAddress], bool]
"""Whether a client's address and the listener's are joined through the tunnel."""

Parameters = Mapping[str, str]
"""What stands behind "?" in the request, each once."""


class BadParameter(ValueError):
    """What stands behind "?" cannot be understood; one line says what is expected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page answers with."""

    content_type: bytes
    body: bytes
    status: int = 200


Handler = Callable[[Parameters], "Answer | Deferred[Answer]"]
"""Makes the answer; raises :class:`BadParameter`."""


def text(body: str, status: int = 200) -> Answer:
    """Answer with text."""
    return Answer(TEXT, body.encode("utf-8", "backslashreplace"), status)


def as_json(value: object) -> Answer:
    """Answer with JSON, indented for people."""
    return Answer(JSON, json.dumps(value, indent=1).encode() + b"\n")


class Page(Resource):
    """A page that ``get`` makes anew each time; ``post``, if there is one, changes something.

    ``parameters`` are the names of those that it takes.
    """

    _log = Logger()

    def __init__(
        self, get: Handler, post: Handler | None = None, parameters: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._handlers = {b"GET": get, b"HEAD": get}
        if post is not None:
            self._handlers[b"POST"] = post
        self._parameters = parameters

    def getChild(self, path: bytes, request: PageRequest) -> Resource:
        return Page(lambda parameters: text("no such page; /debug lists those that exist\n", 404))

    def render(self, request: PageRequest) -> bytes | int:
        """Answer, with twisted.web leaving the body out for HEAD."""
        handler = self._handlers.get(request.method)
        if handler is None:
            allowed = b", ".join(self._handlers)
            request.setHeader(b"allow", allowed)
            return _send(request, text(f"only {allowed.decode()} are answered here\n", 405))
        try:
            answer = handler(self._read(request))
        except BadParameter as error:
            return _send(request, text(f"{error}\n", 400))
        if isinstance(answer, Answer):
            return _send(request, answer)
        # It ends with the request, and lets no error through.
        _ = Deferred.fromCoroutine(self._send_later(request, answer))
        return ANSWERED_LATER

    def _read(self, request: PageRequest) -> Parameters:
        found: dict[str, str] = {}
        for name, values in (request.args or {}).items():
            known = name.decode("utf-8", "backslashreplace")
            if known not in self._parameters or len(values) > 1:
                expected = ", ".join(self._parameters) or "none"
                raise BadParameter(f"parameters of this page, each once: {expected}")
            found[known] = values[0].decode("utf-8", "backslashreplace")
        return found

    async def _send_later(self, request: PageRequest, answer: Deferred[Answer]) -> None:
        gone: list[Failure] = []
        finished = request.notifyFinish()
        _ = finished.addErrback(gone.append)
        try:
            given = await answer
        except Exception:
            # Whatever it is, the client waits for an answer; the log has it.
            self._log.failure("a page of /debug could not be made")
            given = text("the page could not be made: the log says why\n", 500)
        if not gone:
            request.write(_send(request, given))
            request.finish()


class GuardedPages(Resource):
    """``first`` and all pages below it, for those who may ask.

    ``refusal(request)`` says in one line why somebody may not, ``None`` when he may.
    """

    # The way on from here is found after the refusal.
    isLeaf = True

    def __init__(self, first: Page, refusal: Callable[[Request], str | None]) -> None:
        super().__init__()
        self.first = first
        self._refusal = refusal

    def render(self, request: PageRequest) -> bytes | int:
        refused = self._refusal(request)
        if refused is not None:
            return _send(request, text(f"{refused}\n", 403))
        page: Page = getChildForRequest(self.first, request)
        return page.render(request)


def _send(request: PageRequest, answer: Answer) -> bytes:
    request.setResponseCode(answer.status)
    request.setHeader(b"content-type", answer.content_type)
    request.setHeader(b"cache-control", b"no-store")
    request.setHeader(b"x-content-type-options", b"nosniff")
    request.setHeader(b"content-security-policy", b"default-src 'none'")
    request.setHeader(b"server", b"yurttunnel")
    return answer.body


def number(parameters: Parameters, name: str, least: int, most: int, default: int | None) -> int:
    """Read a parameter that is a number from ``least`` to ``most``."""
    given = parameters.get(name)
    if given is None and default is not None:
        return default
    if given is None or not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise BadParameter(f"{name} is wanted: a number from {least} to {most}")
    value = int(given)
    if not least <= value <= most:
        raise BadParameter(f"{name} is a number from {least} to {most}")
    return value


def refusal(request: Request, is_tunnelled: IsTunnelled) -> str | None:
    """Return in one line why ``request`` is refused, ``None`` when it is not."""
    peer = request.getClientAddress()
    if not isinstance(peer, TcpAddress | Tcp6Address) or not is_loopback(peer.host):
        return "/debug is for this machine alone: connect to the meta port by a loopback address"
    if is_tunnelled(peer, request.getHost()):
        return "/debug is for this machine alone: it is not served through the tunnel"
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    if len(hosts) != 1 or not _names_loopback(hosts[0]):
        return "/debug wants a loopback address, or localhost, in the Host field"
    sites = request.requestHeaders.getRawHeaders(b"sec-fetch-site", [])
    origins = request.requestHeaders.getRawHeaders(b"origin", [])
    if is_of_another_page(hosts[0], sites, origins):
        return "/debug answers no requests that pages of other sites make in a browser"
    return None


def _names_loopback(field: bytes) -> bool:
    host = asked_host(field)
    return host == "localhost" or (isinstance(host, Address) and host.is_loopback)
