"""``/v1/revocations`` of a server without a cluster: nodes that may connect no more."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.debug.pages import Answer, BadParameter, Page, Parameters, as_json, text
from yurttunnel.ops.threads import in_own_thread
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.revocation import RevocationFailed, Revocations, revoke_node
from yurttunnel.tunnel.reactor import IReactor


class RevocationPages:
    """Lists the nodes that were revoked, and revokes one in ``state_dir``."""

    _log = Logger()

    def __init__(self, reactor: IReactor, state_dir: Path, revocations: Revocations) -> None:
        self._reactor = reactor
        self._state_dir = state_dir
        self._revocations = revocations

    def pages(self) -> dict[str, Page]:
        """Return the page by its path."""
        return {"revocations": Page(self._list, self._revoke, ("node",))}

    def _list(self, parameters: Parameters) -> Answer:
        return as_json(
            {
                "revocations": [
                    {"node": node, "revoked": timestamp(when.timestamp())}
                    for node, when in sorted(self._revocations.all().items())
                ]
            }
        )

    def _revoke(self, parameters: Parameters) -> Deferred[Answer]:
        node = parameters.get("node", "")
        if not node:
            raise BadParameter("node is wanted: the name of one")
        return Deferred.fromCoroutine(self._revoked(node))

    async def _revoked(self, node: str) -> Answer:
        # It waits for the disk.
        revoke = partial(revoke_node, self._reactor, self._state_dir)
        try:
            sentence = await in_own_thread(self._reactor, "yurttunnel revocation", revoke, node)
        except RevocationFailed as error:
            return text(f"{error}\n", 400)
        except StateError as error:
            return text(f"{error}\n", 500)
        self._log.info("{sentence}, by command", node=node, sentence=sentence)
        # Its session ends now and not with the next look at the file.
        self._revocations.refresh()
        return as_json({"node": node, "done": sentence})
