"""All fuzz targets by name."""

from __future__ import annotations

from tests.fuzz import admin, client_hello, http, hub, pki, texts, wire

TARGETS = {
    target.name: target
    for target in (
        *wire.SESSIONS,
        wire.HELLO,
        http.REQUEST,
        http.RESPONSE,
        http.CHUNKS,
        http.AUTHORITY,
        client_hello.CLIENT_HELLO,
        pki.ENROLMENT,
        pki.IDENTIFIERS,
        pki.CERTIFICATE_REQUEST,
        pki.CERTIFICATE,
        hub.REQUEST,
        *hub.LISTS_AND_WATCHES,
        texts.PATH,
        texts.SIBLING,
        texts.LINE,
        texts.QUOTED,
        *admin.SOCKETS,
    )
}
