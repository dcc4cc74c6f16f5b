"""The command ``--diagnose``: collects, writes the bundle, and prints a summary of problems."""

from __future__ import annotations

import datetime
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn, TextIO

from yurttunnel.ops.diagnose.bundle import Part, write_bundle
from yurttunnel.ops.diagnose.files import files_part
from yurttunnel.ops.diagnose.machine import firewall_part, machine_part, versions_part
from yurttunnel.ops.diagnose.meta_pages import page_parts
from yurttunnel.ops.diagnose.process import process_part
from yurttunnel.ops.diagnose.redaction import redact, redacted_arguments
from yurttunnel.ops.diagnose.subject import Subject

MAX_SHOWN = 15
"""The maximum number of sentences in the printed summary; the bundle has all."""

_MAX_SENTENCE = 400
"""The maximum length of one of them, in characters."""


class BundleNotWritten(Exception):
    """The bundle could not be written; the message says why."""


def run_diagnosis(subject: Subject, output: Path | None) -> NoReturn:
    """Diagnose and exit: with status 0 if no problem was found, else 1."""
    # Not sys.stdout: twist or a test may have replaced it.
    screen = sys.__stdout__ or sys.stdout
    try:
        status = diagnose(subject, output, screen)
    except BundleNotWritten as error:
        print(error, file=screen)
        status = 1
    raise SystemExit(status)


def diagnose(subject: Subject, output: Path | None, screen: TextIO) -> int:
    """Write the bundle to ``output``, and the summary to ``screen``; return the exit status.

    Without ``output`` the bundle is a new file in the working directory. Raises
    :class:`BundleNotWritten`.
    """
    if output is None:
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        output = Path(f"{subject.program}-diagnosis-{moment}.tar.gz")
    parts = list(_collect(subject))
    findings = [redact(sentence, subject.secrets) for part in parts for sentence in part.findings]
    parts.insert(0, Part("summary", "".join(f"{each}\n" for each in findings) or "nothing\n"))
    try:
        write_bundle(output, parts, subject.secrets)
    except OSError as error:
        why = error.strerror or str(error)
        raise BundleNotWritten(f"--output: {output}: {why}: name another file") from None
    print(f"{output.absolute()}", file=screen)
    for line in _summary(subject.program, findings):
        print(line, file=screen)
    return 1 if findings else 0


def _summary(program: str, findings: list[str]) -> Iterator[str]:
    if not findings:
        yield f"{program}: nothing looks wrong."
        return
    yield f"{program}: this looks wrong:"
    for sentence in findings[:MAX_SHOWN]:
        short = sentence[:_MAX_SENTENCE] + ("..." if len(sentence) > _MAX_SENTENCE else "")
        yield f"- {' '.join(short.split())}"
    if len(findings) > MAX_SHOWN:
        yield f"- and {len(findings) - MAX_SHOWN} more, in summary.txt."


def _collect(subject: Subject) -> Iterator[Part]:
    host = _connectable(subject.meta_host)
    port, program = subject.meta_port, subject.program
    now = datetime.datetime.now(datetime.UTC)
    arguments = redacted_arguments(sys.argv, subject.secret_flags)
    yield Part("command-line", "".join(f"{argument}\n" for argument in arguments))
    collectors: list[tuple[str, Callable[[], Iterable[Part]]]] = [
        ("versions", lambda: [versions_part()]),
        ("machine", lambda: [machine_part()]),
        ("files", lambda: [files_part(subject.directories, subject.files, now)]),
        ("process", lambda: [process_part(program, host, port, subject.secret_flags)]),
        ("pages", partial(page_parts, program, host, port)),
    ]
    own_lines = subject.own_lines
    if own_lines is not None:
        collectors.append(("firewall", lambda: [firewall_part(own_lines, subject.own_table)]))
    for name, collect in collectors:
        try:
            yield from collect()
        except Exception as error:
            # A defect in one part must not prevent the others: the machine has problems already.
            yield Part(f"{name}-error", traceback.format_exc(), (f"{name}: {error!r}.",))


def _connectable(host: str) -> str:
    """Return the address to connect to for an address to listen on, which may be unspecified."""
    address = ip_address(host)
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
