"""The pages of a server's admin socket, in addition to those of the meta port.

``/v1/forwards`` are the open forwards; ``/v1/tokens`` and ``/v1/revocations``, of a server without
a cluster, the valid join tokens and the revoked nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from yurttunnel.http.authority import join_authority
from yurttunnel.ops import flags
from yurttunnel.ops.admin_socket import AdminSocket
from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.debug.pages import Page, Parameters, as_json
from yurttunnel.ops.http_site import PageRefused, PageResponse
from yurttunnel.ops.threads import run_in_new_thread
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.revocation import RevocationFailed, Revocations, revoke_node
from yurttunnel.pki.token import (
    DEFAULT_TOKEN_LIFETIME,
    MAX_TOKENS,
    IssuedToken,
    JoinToken,
    TokenRefused,
    TokenStore,
)
from yurttunnel.server.frontends.forward import Forward, parse_forward, parse_listen
from yurttunnel.server.frontends.forwards import ForwardRefused, Forwards, ForwardState
from yurttunnel.server.join_command import command_with_token
from yurttunnel.server.options import Settings
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.standalone_trust import StandaloneServerTrust
from yurttunnel.tunnel.reactor import IReactor


def server_socket(
    directory: Path, process: ServerProcess, extra_pages: Mapping[str, Page]
) -> AdminSocket:
    """Return the socket in ``directory``; ``extra_pages`` are the pages of the mode."""
    forwards = ForwardPages(lambda: process.forwards)
    return process.meta.admin_socket(directory, None, {**forwards.pages(), **extra_pages})


def standalone_pages(
    reactor: IReactor, settings: Settings, directory: Path, trust: StandaloneServerTrust
) -> dict[str, Page]:
    """Return the pages of a server that is its own authority."""
    tokens = TokenPages(
        trust.tokens,
        trust.join_token,
        trust.revocations,
        lambda token: command_with_token(settings, str(token)),
    )
    return {**tokens.pages(), **RevocationPages(reactor, directory, trust.revocations).pages()}


NOT_LISTENING = "this server does not listen yet: it is starting"


class ForwardPages:
    """Lists, opens and closes the forwards of ``find()``, which is ``None`` before the server
    listens.

    A change lasts until the process ends, or until its configuration changes for that forward.
    """

    def __init__(self, find: Callable[[], Forwards | None]) -> None:
        self._find = find

    def pages(self) -> dict[str, Page]:
        """Return the pages by their paths."""
        return {
            "forwards": Page(self._list, self._add, ("forward", "replace")),
            "forwards/remove": Page(self._list, self._remove, ("listen",)),
        }

    def _list(self, parameters: Parameters) -> PageResponse:
        forwards = self._find()
        states = [] if forwards is None else forwards.states()
        return as_json({"forwards": [_forward_entry(each) for each in states]})

    async def _add(self, parameters: Parameters) -> PageResponse:
        with _refused_for(ValueError):
            forward = parse_forward(parameters.get("forward", ""))
        replace = parameters.get("replace", "false")
        if replace not in ("true", "false"):
            raise PageRefused("replace must be true or false")
        with _refused_for(ForwardRefused, 409):
            await self._forwards().add(forward, replace == "true")
        return as_json(_describe(forward))

    async def _remove(self, parameters: Parameters) -> PageResponse:
        with _refused_for(ValueError, what="listen: "):
            listen = parse_listen(parameters.get("listen", ""))
        with _refused_for(ForwardRefused, 409):
            forward = await self._forwards().remove(listen)
        return as_json(_describe(forward))

    def _forwards(self) -> Forwards:
        forwards = self._find()
        if forwards is None:
            raise PageRefused(NOT_LISTENING, 409)
        return forwards


def _forward_entry(state: ForwardState) -> dict[str, object]:
    return {
        **_describe(state.forward),
        "origin": state.origin.value,
        "connections": state.connections,
    }


def _describe(forward: Forward) -> dict[str, object]:
    return {
        "listen": join_authority(*forward.listen),
        "node": forward.node,
        "target": join_authority(forward.host, forward.port),
    }


class RevocationPages:
    """Lists the revoked nodes, and revokes one in ``state_dir``."""

    _log = Logger()

    def __init__(self, reactor: IReactor, state_dir: Path, revocations: Revocations) -> None:
        self._reactor = reactor
        self._state_dir = state_dir
        self._revocations = revocations
        # Each revocation reads and rewrites the list.
        self._one_at_a_time = DeferredLock()

    def pages(self) -> dict[str, Page]:
        """Return the page by its path."""
        return {"revocations": Page(self._list, self._revoke, ("node",))}

    def _list(self, parameters: Parameters) -> PageResponse:
        return as_json(
            {
                "revocations": [
                    {"node": node, "revoked": timestamp(when.timestamp())}
                    for node, when in sorted(self._revocations.all().items())
                ]
            }
        )

    async def _revoke(self, parameters: Parameters) -> PageResponse:
        node = parameters.get("node", "")
        if not node:
            raise PageRefused("node is missing: give the name of a node")
        # In a thread, because it waits for the disk.
        revoke = partial(revoke_node, self._reactor, self._state_dir)
        with _refused_for(RevocationFailed), _refused_for(StateError, 500):
            sentence = await self._one_at_a_time.run(
                run_in_new_thread, self._reactor, "yurttunnel revocation", revoke, node
            )
        self._log.info("{sentence} by a command", node=node, sentence=sentence)
        # Refreshed so that the session ends now, instead of at the next check of the file.
        self._revocations.refresh()
        return as_json({"node": node, "done": sentence})


class TokenPages:
    """Lists tokens without their secrets, creates one, and revokes one.

    ``command(token)`` returns the command for a node. The token in ``file`` is one of the tokens.
    """

    _log = Logger()

    def __init__(
        self,
        tokens: TokenStore,
        file: JoinTokenFile,
        revocations: Revocations,
        command: Callable[[JoinToken], str],
    ) -> None:
        self._tokens = tokens
        self._file = file
        self._revocations = revocations
        self._command = command

    def pages(self) -> dict[str, Page]:
        """Return the pages by their paths."""
        return {
            "tokens": Page(self._list, self._create, ("lifetime",)),
            "tokens/revoke": Page(self._list, self._revoke, ("id",)),
        }

    def _list(self, parameters: Parameters) -> PageResponse:
        with _refused_for(StateError, 500):
            in_file = self._file.read()
        token_in_file = None if in_file is None else in_file.token_id
        return as_json(
            {
                "tokens": [
                    _token_entry(each, each.token_id == token_in_file)
                    for each in self._tokens.valid()
                ]
            }
        )

    def _create(self, parameters: Parameters) -> PageResponse:
        lifetime = _lifetime(parameters)
        if len(self._tokens.valid()) >= MAX_TOKENS:
            raise PageRefused(f"{MAX_TOKENS} join tokens are valid already: revoke one first", 409)
        with _refused_for(StateError, 500, "the join token cannot be created: "):
            token = self._tokens.issue(lifetime, after=self._revocations.last_revocation())
        self._log.info(
            "join token {token} is created by a command, and valid for {seconds:.0f} s",
            token=token.token_id,
            seconds=lifetime,
        )
        issued = self._tokens.check(token.token_id, token.secret)
        return as_json(
            {**_token_entry(issued, False), "token": str(token), "command": self._command(token)}
        )

    def _revoke(self, parameters: Parameters) -> PageResponse:
        token_id = parameters.get("id", "")
        if not token_id:
            raise PageRefused("id is missing: give the id of a join token")
        cannot = "the join token cannot be revoked: "
        with _refused_for(TokenRefused, 409), _refused_for(StateError, 500, cannot):
            self._tokens.revoke(token_id)
        self._log.info("join token {token} is revoked by a command", token=token_id)
        self._file.replace_if_due()
        return as_json({"id": token_id})


def _token_entry(token: IssuedToken, is_in_file: bool) -> dict[str, object]:
    return {
        "id": token.token_id,
        "created": timestamp(token.created.timestamp()),
        "expires": timestamp(token.expires.timestamp()),
        "in_file": is_in_file,
    }


def _lifetime(parameters: Parameters) -> float:
    text_value = parameters.get("lifetime")
    if text_value is None:
        return DEFAULT_TOKEN_LIFETIME
    with _refused_for(ValueError, what="lifetime: "):
        return flags.token_lifetime(text_value)


@contextlib.contextmanager
def _refused_for(kind: type[Exception], status: int = 400, what: str = "") -> Iterator[None]:
    """Respond with the message of an error of this kind, after ``what``."""
    try:
        yield
    except kind as error:
        raise PageRefused(f"{what}{error}", status) from None
