"""The bundle as a file: a ``.tar.gz`` that only its owner can read."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from yurttunnel.ops.diagnose.redaction import redact
from yurttunnel.ops.private_files import check_parents


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the bundle: its name, its text, and a sentence for each problem found."""

    name: str
    text: str
    findings: tuple[str, ...] = ()


def write_bundle(path: Path, parts: Iterable[Part], secrets: Iterable[str]) -> None:
    """Write ``parts`` to a new file with mode 0600, without ``secrets`` and what looks like one.

    Raises ``OSError``: a ``FileExistsError`` if ``path`` exists, and an error if others could
    replace it. A partial file is then removed.
    """
    check_parents(path, _sudo_user())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    directory = path.name.removesuffix(".gz").removesuffix(".tar")
    now = int(time.time())
    known = [secret for secret in secrets if secret]
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for part in parts:
                content = redact(part.text, known).encode("utf-8", "backslashreplace")
                entry = tarfile.TarInfo(f"{directory}/{part.name}.txt")
                entry.size, entry.mtime, entry.mode = len(content), now, 0o600
                archive.addfile(entry, io.BytesIO(content))
    except BaseException:
        # Whatever the error, a partial bundle is useless.
        os.unlink(path)
        raise


def _sudo_user() -> Collection[int]:
    """Return the user who called sudo(8) and chose the path: that one's directories are trusted."""
    try:
        return (int(os.environ["SUDO_UID"]),)
    except (KeyError, ValueError):
        return ()
