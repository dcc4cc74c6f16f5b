"""Makes clients list again when their responses are processed differently than before.

When a watch only ends, reflectors resume it at its last version, without a list (``ListAndWatch``
of k8s.io/client-go tools/cache/reflector.go). So the client gets the API's response for a version
that is too old: 410 Expired.
"""

from __future__ import annotations

from yurttunnel.http.errors import RequestFailed, status_content
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.hub.filters.interfaces import IWatchTracker
from yurttunnel.hub.media.json_watches import event_form
from yurttunnel.hub.request.failures import send_failure
from yurttunnel.hub.request.requests import HubCall

EXPIRED = RequestFailed(
    410, "yurthub now processes responses for this client differently: list again"
)


def end_when_changed(tracker: IWatchTracker, call: HubCall, changed: bool) -> None:
    """End a watch once ``tracker`` reports that it is processed differently.

    A watch that is ``changed`` by filters is JSON in complete frames: its client gets an ERROR
    event. Any other watch is aborted, and rejected when resumed; so is the response of a rejected
    watch.
    """
    exchange = call.exchange

    def end() -> None:
        if changed and exchange.head_sent and exchange.status < 400:
            exchange.write(event_form("ERROR", status_content(EXPIRED)[1].strip()))
            exchange.finish()
        else:
            send_failure(exchange, EXPIRED)

    stop = tracker.track(call.caller, call.request, end)

    def ended(error: ExchangeFailed | None) -> None:
        stop()

    exchange.on_end(ended)
