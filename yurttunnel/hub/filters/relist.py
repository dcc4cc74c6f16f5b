"""Has clients list again when something else is done with their answers than before.

A watch that only ends is begun again by reflectors where it ended, without a list
(``ListAndWatch`` of k8s.io/client-go tools/cache/reflector.go). So it is told what the API itself
tells of a version that is too old: 410 Expired.
"""

from __future__ import annotations

from yurttunnel.http.errors import RequestFailed, status_content
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.hub.filters.interfaces import IFollowing
from yurttunnel.hub.media.json_watches import event_form
from yurttunnel.hub.request.failures import tell
from yurttunnel.hub.request.requests import HubCall

EXPIRED = RequestFailed(410, "what yurthub does for this client has changed: list again")


def end_when_changed(following: IFollowing, call: HubCall, changed: bool) -> None:
    """End a watch once ``following`` says that something else is done with it.

    One that is ``changed`` on its way is JSON, and written in whole frames: its client is told to
    list again. Any other is cut where it is, and told when it is begun again; so is what says why
    there is no watch.
    """
    exchange = call.exchange

    def end() -> None:
        if changed and exchange.head_sent and exchange.status < 400:
            exchange.write(event_form("ERROR", status_content(EXPIRED)[1].strip()))
            exchange.finish()
        else:
            tell(exchange, EXPIRED)

    stop = following.follow(call.caller, call.request, end)

    def ended(error: ExchangeFailed | None) -> None:
        stop()

    exchange.on_end(ended)
