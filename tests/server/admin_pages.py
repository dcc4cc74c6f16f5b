"""The pages of a server's socket in memory, over a state directory."""

from __future__ import annotations

from functools import partial

from twisted.internet.testing import MemoryReactorClock
from twisted.web.resource import Resource

from tests.ops.admin_sites import AdminSite
from yurttunnel.ops.admin.service import admin_pages, process_page
from yurttunnel.ops.debug.pages import Page, text
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.readiness import Readiness
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.records import NodeRecords
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import TokenStore
from yurttunnel.server.admin import ForwardPages, RevocationPages, TokenPages
from yurttunnel.server.frontends.forward import ForwardFactory
from yurttunnel.server.frontends.forwards import Forwards
from yurttunnel.server.registry import SessionRegistry

PIN = "5" * 64


class ThreadlessReactor(MemoryReactorClock):
    """A reactor whose calls from threads wait for :meth:`take`."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list = []

    def callFromThread(self, function, *arguments):  # Twisted's name
        """Keep the call."""
        self._calls.append((function, arguments))

    def take(self) -> bool:
        """Make the calls there are; whether there were any."""
        calls, self._calls = self._calls, []
        for function, arguments in calls:
            function(*arguments)
        return bool(calls)


class ServerPages:
    """What ``site`` serves: tokens, revocations, forwards, and the process itself."""

    def __init__(self, reactor: ThreadlessReactor, directory: StateDirectory) -> None:
        self.reactor = reactor
        self.tokens = TokenStore(reactor, directory, PIN)
        self.revocations = Revocations(reactor, directory, NodeRecords(directory))
        file = JoinTokenFile(reactor, directory, self.tokens, self.revocations)
        file.refresh()
        tokens = TokenPages(self.tokens, file, self.revocations, lambda token: f"join with {token}")
        revocations = RevocationPages(reactor, directory.path, self.revocations)
        forwards = Forwards(
            lambda forward: ForwardFactory(SessionRegistry(reactor), forward),
            partial(listen_tcp, reactor),
            (),
        )
        forwards.listen()
        own = {
            **tokens.pages(),
            **revocations.pages(),
            **ForwardPages(lambda: forwards).pages(),
            "process": process_page(reactor, "yurttunnel-server", Readiness(), dict),
        }
        self.site = AdminSite(reactor, admin_pages(Resource(), Page(lambda _: text("")), own))
