"""What is asked of the API when a filter has to look into the answer: whole objects in JSON.

A Table is left out although it can be JSON: of objects it has the metadata only, so nothing could
be changed or hidden by what they specify. Who asks for Tables, as kubectl does, takes objects, too.
``PartialObjectMetadata`` stays: it has nothing that filters change but what hides by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from yurttunnel.http.fields import Fields
from yurttunnel.hub.request.requests import Form

_JSON = frozenset({b"application/json", b"application/*", b"*/*"})


def json_forms(forms: Iterable[Form]) -> tuple[Form, ...]:
    """Return those of the forms that a filter can look into; with none, the answer is 406."""
    return tuple(form for form in forms if form.media == "json" and form.transform != "Table")


def json_only(fields: Fields) -> list[tuple[bytes, bytes]]:
    """Return a request's fields, whose ``Accept`` asks for :func:`json_forms` only."""
    accepts = b",".join(value for name, value in fields if name.lower() == b"accept")
    others = [field for field in fields if field[0].lower() != b"accept"]
    return [*others, (b"Accept", b",".join(_kept(accepts)) or b"application/json")]


def _kept(accepts: bytes) -> Iterator[bytes]:
    for clause in accepts.split(b","):
        media_type, *parameters = (part.strip() for part in clause.split(b";"))
        if media_type.lower() in _JSON and b"as=Table" not in parameters:
            yield b";".join((b"application/json", *parameters))
