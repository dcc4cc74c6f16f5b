"""``/v1/forwards`` of a server: the forwards that are open; opened and closed while it runs."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.debug.pages import Answer, BadParameter, Page, Parameters, as_json, text
from yurttunnel.server.frontends.forward import Forward, Listen, parse_forward, parse_listen
from yurttunnel.server.frontends.forwards import ForwardRefused, Forwards, ForwardState

NOT_YET = "this server takes no callers now: it begins"


class ForwardPages:
    """Lists, opens and closes what ``find()`` gives, which is ``None`` before the server listens.

    What is done so lasts until the process ends, or its configuration says something else.
    """

    def __init__(self, find: Callable[[], Forwards | None]) -> None:
        self._find = find

    def pages(self) -> dict[str, Page]:
        """Return the pages by their paths."""
        return {
            "forwards": Page(self._list, self._add, ("forward", "replace")),
            "forwards/remove": Page(self._list, self._remove, ("listen",)),
        }

    def _list(self, parameters: Parameters) -> Answer:
        forwards = self._find()
        states = [] if forwards is None else forwards.states()
        return as_json({"forwards": [_entry(each) for each in states]})

    def _add(self, parameters: Parameters) -> Deferred[Answer]:
        try:
            forward = parse_forward(parameters.get("forward", ""))
        except ValueError as error:
            raise BadParameter(str(error)) from None
        replace = parameters.get("replace", "false")
        if replace not in ("true", "false"):
            raise BadParameter("replace is true or false")
        return Deferred.fromCoroutine(self._added(forward, replace == "true"))

    async def _added(self, forward: Forward, replace: bool) -> Answer:
        forwards = self._find()
        if forwards is None:
            return text(f"{NOT_YET}\n", 409)
        try:
            await forwards.add(forward, replace)
        except ForwardRefused as error:
            return text(f"{error}\n", 409)
        return as_json(_described(forward))

    def _remove(self, parameters: Parameters) -> Deferred[Answer]:
        try:
            listen = parse_listen(parameters.get("listen", ""))
        except ValueError as error:
            raise BadParameter(f"listen: {error}") from None
        return Deferred.fromCoroutine(self._removed(listen))

    async def _removed(self, listen: Listen) -> Answer:
        forwards = self._find()
        if forwards is None:
            return text(f"{NOT_YET}\n", 409)
        try:
            forward = await forwards.remove(listen)
        except ForwardRefused as error:
            return text(f"{error}\n", 409)
        return as_json(_described(forward))


def _entry(state: ForwardState) -> dict[str, object]:
    return {
        **_described(state.forward),
        "origin": state.origin.value,
        "connections": state.connections,
    }


def _described(forward: Forward) -> dict[str, object]:
    return {
        "listen": join_authority(*forward.listen),
        "node": forward.node,
        "target": join_authority(forward.host, forward.port),
    }
