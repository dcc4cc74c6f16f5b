"""Dumps of the cache as text, or as one file per object.

A dump reads a file that a running hub may have open, and changes nothing in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar
from urllib.parse import quote

from yurttunnel.hub.cache.connection import connect
from yurttunnel.hub.cache.errors import BodyDamaged
from yurttunnel.hub.cache.interfaces import Collection
from yurttunnel.hub.cache.reading import Reader, check_body
from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.interfaces import TypeMeta
from yurttunnel.hub.request.requests import Form
from yurttunnel.ops.printable import printable

_MAX_FILE_NAME = 255
"""Maximum length of a file name in bytes (``NAME_MAX`` of limits.h)."""

_Result = TypeVar("_Result")

_OBJECTS = (
    "SELECT client, resource, form, view, api_version, kind, namespace, name, objects.version, {0}"
    " FROM collections JOIN objects ON collection = collections.id"
    " ORDER BY client, resource, form, view, namespace, name"
)


def as_text(path: Path) -> Iterator[str]:
    """Yield a line for each collection, followed by one for each of its objects.

    Raises :class:`CacheFailed`.
    """
    rows = _read(path, lambda connection: connection.execute(_OBJECTS.format("size")).fetchall())
    before: list[str] = []
    for *collection, _, _, namespace, name, version, size in rows:
        if collection != before:
            before = collection
            yield " ".join(printable(part) for part in collection if part)
        name = f"{namespace}/{name}" if namespace else name
        yield f"  {printable(name)} version {printable(str(version))}, {size} bytes"


def write_files(path: Path, directory: Path) -> int:
    """Write each object to a file below ``directory``; return their number.

    The files are ``<directory>/<client>/<resource>/<namespace>/<name>``, without the namespace of
    cluster-scoped objects. Special characters are percent-encoded. The directory and everything in
    it is created for the owner only: it contains secrets. Raises :class:`CacheFailed`, if bodies
    are damaged after all others were written, and ``OSError``.
    """
    return _read(path, lambda connection: _write_all(connection, directory))


def _read(path: Path, read: Callable[[Connection], _Result]) -> _Result:
    reader = Reader(path, connect)
    try:
        return reader.read(read)
    finally:
        reader.close()


def _write_all(connection: Connection, directory: Path) -> int:
    directory.mkdir(mode=0o700)
    number, damages = 0, []
    for row in connection.execute(_OBJECTS.format("checksum, body")):
        collection, type, body = Collection(*row[:4]), TypeMeta(*row[4:6]), row[10]
        try:
            check_body(row[7], *row[9:])
        except BodyDamaged as damage:
            damages.append(damage)
            continue
        parent = directory
        resource = ",".join(part for part in collection[1:] if part and part != "json")
        for part in (collection.client, resource, row[6]):
            if part:
                parent = parent / _file_name(part)
                parent.mkdir(mode=0o700, exist_ok=True)
        _write(parent / _file_name(row[7]), _whole(collection.form, type, body))
        number += 1
    if damages:
        raise BodyDamaged(f"{damages[0]}; {number} objects are in {directory}, {len(damages)} not")
    return number


def _write(path: Path, body: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)


def _whole(form: str, type: TypeMeta, body: bytes) -> bytes:
    """Return an item as a complete object if its form is known, else unchanged."""
    encoding, _, shape = form.partition(":")
    transform, _, version = shape.partition(".")
    known = codec_for(Form(encoding, transform, version))
    return body if known is None else known.object(type, body)


def _file_name(name: str) -> str:
    """Return a safe file name for a name; it never refers to another directory."""
    quoted = quote(name, safe=" :@,=+")
    if quoted.strip(".") == "":
        quoted = quoted.replace(".", "%2E")
    if len(quoted) <= _MAX_FILE_NAME:
        return quoted
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{quoted[: _MAX_FILE_NAME - len(digest) - 1]}~{digest}"
