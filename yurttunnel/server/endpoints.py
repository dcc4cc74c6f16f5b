"""Endpoint strings of ``--connect-endpoint``: Unix sockets, TCP and TLS ports, and systemd's.

The syntax is that of ``twisted.internet.endpoints.serverFromString``. Only some kinds are accepted,
and the defaults differ, since everyone who connects reaches the nodes: a Unix socket has mode 0660,
``tcp:`` and ``tcp6:`` without an interface bind the loopback address, and ``ssl:`` requires client
certificates. A ``systemd:`` socket is as its unit defines it. Colons in the brackets of an address
(``interface=[::1]``) need no escape, because an address from a variable cannot be escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, Protocol

from cryptography import x509
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import (
    IListeningPort,
    IOpenSSLServerConnectionCreator,
    IProtocolFactory,
)
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from yurttunnel.http.authority import parse_port
from yurttunnel.ops import flags
from yurttunnel.ops.listen import BACKLOG, SOCKET_MODE, CannotListen, listen_tcp, listen_unix
from yurttunnel.ops.plain_files import read_plain
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.credentials import (
    BadCredentials,
    Credentials,
    certificates_from_pem,
    key_from_pem,
)
from yurttunnel.tunnel.reactor import IReactor

log = Logger()

_LOOPBACK = "127.0.0.1"
_LOOPBACK6 = "::1"

# A field ends at a colon without a backslash before it, as in serverFromString, and outside of the
# brackets of an address.
_FIELD = re.compile(r"(interface=\[[^][\\]*\]|(?:[^:\\]|\\.)*)(?::|$)", re.DOTALL)
_BRACKETED = re.compile(r"\[([^][]*)\]")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_KEYWORD = re.compile(r"([a-zA-Z]+)=(.*)", re.DOTALL)


class ListenOptions(NamedTuple):
    """The options with which an endpoint listens: ``factory``, configured by ``flag``.

    ``credentials`` are the server's own, for ``ssl:`` endpoints without files: they must require a
    client certificate, and accept the protocol ``http/1.1`` (ALPN). ``restricted`` is whether
    callers also need a permission for their destination.
    """

    reactor: IReactor
    flag: str
    factory: ServerFactory
    credentials: IOpenSSLServerConnectionCreator | None = None
    restricted: bool = False


class Endpoint(Protocol):
    """A parsed endpoint string."""

    def listen(self, options: ListenOptions) -> IListeningPort:
        """Listen; raises :class:`CannotListen`, which names the flag."""


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """``unix:PATH[:mode=660][:backlog=N]``."""

    path: str
    mode: int = SOCKET_MODE
    backlog: int = BACKLOG

    def listen(self, options: ListenOptions) -> IListeningPort:
        """See :class:`Endpoint`."""
        return listen_unix(
            options.reactor, options.flag, self.path, options.factory, self.mode, self.backlog
        )


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """``tcp:PORT[:interface=ADDRESS][:backlog=N]``, and ``tcp6:`` with ``::1`` for a default."""

    port: int
    interface: str = _LOOPBACK
    backlog: int = BACKLOG

    def listen(self, options: ListenOptions) -> IListeningPort:
        """See :class:`Endpoint`; warns if other machines can connect."""
        if not (options.restricted or ip_address(self.interface).is_loopback):
            log.warn(
                "{flag}: everybody who can connect to {interface} port {port} can reach every"
                " node; ssl: requires a certificate, unix: is closed to other users",
                flag=options.flag,
                interface=self.interface,
                port=self.port,
            )
        return _listen_tcp(self, options, options.factory)


@dataclass(frozen=True, slots=True)
class TlsEndpoint:
    """``ssl:PORT[:interface=ADDRESS][:backlog=N][:privateKey=F:caCerts=F[:certKey=F]...]``.

    Without files the server's own credentials are used. With them callers need a certificate of an
    authority in ``caCerts``, which must not be that of a node. ``certKey`` is the certificate, by
    default in ``privateKey``, followed by its chain unless ``extraCertChain`` names another file.

    A caller that closes its direction of TLS ends the connection: Twisted's TLS has no half-close.
    """

    port: int
    interface: str = _LOOPBACK
    backlog: int = BACKLOG
    private_key: str = ""
    certificate: str = ""
    chain: str = ""
    ca: str = ""

    def listen(self, options: ListenOptions) -> IListeningPort:
        """See :class:`Endpoint`."""
        flag = options.flag
        credentials = self._load(flag) if self.private_key else options.credentials
        if credentials is None:
            raise CannotListen(flag, "the server has no certificate of its own: add privateKey=")
        secured = TLSMemoryBIOFactory(credentials, False, options.factory, clock=options.reactor)
        return _listen_tcp(self, options, secured)

    def _load(self, flag: str) -> CallerContexts:
        """Read the files; they are not reloaded."""
        try:
            key = key_from_pem(read_plain(Path(self.private_key)))
            certificate, *chain = _load_certificates(self.certificate or self.private_key)
            if self.chain:
                chain = list(_load_certificates(self.chain))
            authorities = _load_certificates(self.ca)
            credentials = Credentials(key, certificate, tuple(chain), authorities)
            return CallerContexts(credentials, names=None)
        except OSError as error:
            raise CannotListen(flag, f"cannot read {error.filename}: {error.strerror}") from None
        except BadCredentials as error:
            files = ", ".join(filter(None, [self.private_key, self.certificate, self.ca]))
            raise CannotListen(
                flag, f"no usable key and certificates in {files}: {error}"
            ) from None


@dataclass(frozen=True, slots=True)
class SystemdEndpoint:
    """``systemd:domain=UNIX:name=NAME``: a socket that systemd has opened; parsed by Twisted."""

    description: str

    def listen(self, options: ListenOptions) -> IListeningPort:
        """See :class:`Endpoint`."""
        flag = options.flag
        results: list[IListeningPort | Failure] = []
        try:
            endpoint = serverFromString(options.reactor, self.description)
            # Twisted's own endpoints listen at once; the Deferred they return has fired.
            endpoint.listen(options.factory).addBoth(results.append)
        except LookupError:
            raise CannotListen(
                flag, f"systemd has passed no socket for {self.description!r}"
            ) from None
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise CannotListen(flag, f"bad endpoint {self.description!r}: {error}") from None
        if not results:
            raise CannotListen(flag, f"{self.description!r} does not listen immediately")
        (result,) = results
        if isinstance(result, Failure):
            if not isinstance(result.value, CannotListenError | OSError | ValueError):
                result.raiseException()
            raise CannotListen(flag, f"cannot listen on {self.description!r}: {result.value}")
        return result


def _listen_tcp(
    endpoint: TcpEndpoint | TlsEndpoint, options: ListenOptions, factory: IProtocolFactory
) -> IListeningPort:
    interface, port, backlog = endpoint.interface, endpoint.port, endpoint.backlog
    return listen_tcp(options.reactor, options.flag, interface, port, factory, backlog)


def parse_endpoint(text: str) -> Endpoint:
    """Parse an endpoint string; raises ``ValueError`` with a one-line reason."""
    kind, *arguments = _split(text)
    if kind == "systemd":
        return SystemdEndpoint(text)
    if kind not in _PARSERS:
        raise ValueError(
            f"{text!r} is not an endpoint: write unix:PATH, tcp:PORT:interface=ADDRESS or "
            "ssl:PORT:interface=ADDRESS"
        )
    keywords = {
        match[1]: match[2] for argument in arguments if (match := _KEYWORD.fullmatch(argument))
    }
    positional = [argument for argument in arguments if not _KEYWORD.fullmatch(argument)]
    what = "PATH" if kind == "unix" else "PORT"
    if len(positional) != 1 or not positional[0]:
        raise ValueError(f"{text!r} needs exactly one {what}: write {kind}:{what}")
    endpoint = _PARSERS[kind](positional[0], keywords, text)
    if keywords:
        raise ValueError(f"{text!r}: {kind}: has no parameter {next(iter(keywords))}=")
    return endpoint


def _parse_unix(path: str, keywords: dict[str, str], text: str) -> Endpoint:
    mode = keywords.pop("mode", f"{SOCKET_MODE:o}")
    if not re.fullmatch("[0-7]{3,4}", mode):
        raise ValueError(f"{text!r}: mode={mode} is not octal: write mode=660")
    return UnixEndpoint(path, int(mode, 8), _pop_backlog(keywords, text))


def _parse_tcp(port: str, keywords: dict[str, str], text: str) -> Endpoint:
    interface = _pop_interface(keywords, text)
    return TcpEndpoint(_parse_port(port, text), interface, _pop_backlog(keywords, text))


def _parse_tcp6(port: str, keywords: dict[str, str], text: str) -> Endpoint:
    keywords.setdefault("interface", _LOOPBACK6)
    return _parse_tcp(port, keywords, text)


def _parse_tls(port: str, keywords: dict[str, str], text: str) -> Endpoint:
    names = ("privateKey", "certKey", "extraCertChain", "caCerts")
    files = [keywords.pop(name, "") for name in names]
    private_key, _, _, ca = files
    if bool(private_key) != bool(ca) or (any(files) and not private_key):
        raise ValueError(f"{text!r}: privateKey= and caCerts= must be given together")
    interface = _pop_interface(keywords, text)
    return TlsEndpoint(_parse_port(port, text), interface, _pop_backlog(keywords, text), *files)


_PARSERS = {"unix": _parse_unix, "tcp": _parse_tcp, "tcp6": _parse_tcp6, "ssl": _parse_tls}


def _split(text: str) -> list[str]:
    """Split at colons; a backslash escapes the next character."""
    fields = []
    position = 0
    while True:
        match = _FIELD.match(text, position)
        if match is None:
            raise ValueError(f"{text!r} ends in a lone backslash")
        fields.append(_ESCAPED.sub(r"\1", match[1]))
        position = match.end()
        if not match[0].endswith(":") or match.end(1) == match.end():
            return fields


def _parse_port(port: str, text: str) -> int:
    try:
        return parse_port(port)
    except ValueError as reason:
        raise ValueError(f"{text!r}: {reason}") from None


def _pop_interface(keywords: dict[str, str], text: str) -> str:
    interface = keywords.pop("interface", _LOOPBACK)
    bracketed = _BRACKETED.fullmatch(interface)
    try:
        return flags.listening_address(bracketed[1] if bracketed else interface)
    except ValueError:
        raise ValueError(
            f"{text!r}: interface={interface} is not an address (IPv6 as interface=[::1])"
        ) from None


def _pop_backlog(keywords: dict[str, str], text: str) -> int:
    backlog = keywords.pop("backlog", str(BACKLOG))
    if not re.fullmatch("[0-9]{1,6}", backlog, re.ASCII):
        raise ValueError(f"{text!r}: backlog={backlog} is not a number")
    return int(backlog)


def _load_certificates(path: str) -> tuple[x509.Certificate, ...]:
    return certificates_from_pem(read_plain(Path(path)))
