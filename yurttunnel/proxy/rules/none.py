"""No rules: clients connect to the ports of proxy sockets themselves."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.proxy.interfaces import IConntrack, IPortClaims, IRules, ProxiedService, StaleFlows
from yurttunnel.proxy.state.virtual_services import Key, Portal, VirtualService
from yurttunnel.steering.interfaces import VERSIONS, Applied


@implementer(IRules, IPortClaims, IConntrack)
class NoRules:
    """Leaves the kernel unchanged: claims no portals, and deletes no conntrack entries.

    The rules that would be created are logged at debug level.
    """

    _log = Logger()

    backend = "none"

    def __init__(self) -> None:
        self._logged: frozenset[str] = frozenset()

    async def apply(self, proxied: Sequence[ProxiedService]) -> Applied:
        """Log the changes of the rules that would be created; see :class:`IRules`."""
        sentences = dict.fromkeys(sentence for each in proxied for sentence in _sentences(each))
        for sentence in sentences:
            if sentence not in self._logged:
                self._log.debug("--proxy-backend none: {sentence}", sentence=sentence)
        self._logged = frozenset(sentences)
        return Applied()

    async def remove(self, versions: Collection[int] = VERSIONS) -> bool:
        return False

    def generation(self) -> int | None:
        return None

    def claim(
        self, services: Mapping[Key, VirtualService]
    ) -> Generator[str, None, Mapping[tuple[Key, Portal], str]]:
        yield ""
        return {}

    def release(self) -> None:
        """See :class:`IPortClaims`."""

    def delete_entries(self, version: int, stale: Collection[StaleFlows]) -> Deferred[int]:
        return succeed(0)


def _sentences(proxied: ProxiedService) -> list[str]:
    service, port = proxied.service, proxied.proxy_port
    end = f"redirected to port {port}" if port is not None else service.no_endpoints_action.value
    return [
        f"{service.key}: {portal.kind.value} {portal.address or '*'} port {portal.port} would be"
        f" {end}"
        for portal in service.portals
    ]
