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
from yurttunnel.ops.private_files import check_above


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the bundle: its name, its text, and a sentence for each thing that is wrong."""

    name: str
    text: str
    findings: tuple[str, ...] = ()


def write_bundle(path: Path, parts: Iterable[Part], secrets: Iterable[str]) -> None:
    """Write ``parts`` without ``secrets``, and what looks like one, to a new file, mode 0600.

    Raises ``OSError``, a ``FileExistsError`` when there is something at ``path``, and where others
    could replace it; what was begun is removed then.
    """
    check_above(path, _who_asks())
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
        # Whatever it was, half a bundle is of no use.
        os.unlink(path)
        raise


def _who_asks() -> Collection[int]:
    """Return the user who has called sudo(8), and chosen the path: his directories are no trap."""
    try:
        return (int(os.environ["SUDO_UID"]),)
    except (KeyError, ValueError):
        return ()
