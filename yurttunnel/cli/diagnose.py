"""``yurttunnel diagnose``: runs ``--diagnose`` for a running process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from twisted.python import usage

from yurttunnel.cli.client import DISCOVERY_SECONDS, CommandFailed, Process
from yurttunnel.cli.options import PROGRAM, STATE_DIR, ClientCommand, ClientOptions
from yurttunnel.ops import flags
from yurttunnel.ops.diagnose.subject import Subject
from yurttunnel.ops.flag_table import Flag, Group
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import CommandOptions

BUNDLE = Flag(
    "output",
    Group.BASICS,
    flags.path,
    "The file to make. [default: one with the time in its name, in the working directory]",
    short="o",
)


_WITH_DEFAULT_DIRECTORY = ("server", "agent")
"""Programs whose default state directory, with their socket, depends on their user."""


class DiagnoseOptions(ClientOptions):
    """Options of ``yurttunnel diagnose``."""

    longdesc = """Collects diagnostic data of the running server (agent, hub, proxy) into a .tar.gz
    without keys and tokens, and lists what looks wrong; the exit status is 0 if nothing does. For a
    program that does not run, start it with its own flags and --diagnose."""

    examples = (
        Example("Diagnose the server, into a file in this directory"),
        Example("Diagnose the agent, into a named file", "--program agent -o agent.tar.gz"),
    )

    table = (BUNDLE, PROGRAM, STATE_DIR)


def diagnose(options: DiagnoseOptions) -> int:
    """Diagnose the process by its own command line; return the exit status."""
    from yurttunnel.ops.diagnose.command import BundleNotWritten
    from yurttunnel.ops.diagnose.command import diagnose as write_diagnosis

    program = options.value(PROGRAM)
    bundle = options.optional_value(BUNDLE, None)
    process = options.process(program)
    # The working directory may have been removed, and have no path any more.
    working_directory = os.open(".", os.O_PATH)
    directory = Path(f"/proc/{process.pid()}")
    try:
        arguments = (directory / "cmdline").read_text("utf-8", "surrogateescape").split("\0")[:-1]
        environment = _environment((directory / "environ").read_text("utf-8", "surrogateescape"))
        # Relative paths in its flags start at the process's working directory.
        os.chdir(directory / "cwd")
        own_flags = own_arguments(program, arguments)
        info = _process_info(process)
        try:
            subject = _subject(program, own_flags, environment)
        except usage.UsageError as error:
            # The file of --config was broken or removed since the process read it.
            sentence = f"the flags of the process are not understood: {error}"
            if info is None:
                raise CommandFailed(sentence) from None
            print(f"{sentence}; only the process's own data is collected", file=sys.stderr)
            subject = _subject_without_flags(program, process, info)
        subject = _with_absolute_paths(Path(os.readlink(directory / "cwd")), subject)
    except OSError as error:
        raise CommandFailed(f"{error.filename}: {error.strerror}: run this as its user") from None
    finally:
        os.fchdir(working_directory)
        os.close(working_directory)
    if info is not None:
        # The file of --config may name another meta port by now, which takes effect at a restart.
        subject = subject._replace(meta_host=info.meta_host, meta_port=info.meta_port)
    if program in _WITH_DEFAULT_DIRECTORY:
        # The default of the process's user differs from that of root, who may diagnose it, too.
        subject = subject._replace(directories=(process.path.parent,))
    try:
        return write_diagnosis(subject, bundle, sys.stdout)
    except BundleNotWritten as error:
        raise CommandFailed(str(error)) from None


def own_arguments(program: str, arguments: Sequence[str]) -> Sequence[str]:
    """Return the flags of ``program`` from the command line ``arguments`` of its process."""
    for position, word in enumerate(arguments):
        if position and word in (program, f"yurttunnel-{program}", f"yurt{program}"):
            return arguments[position + 1 :]
    raise CommandFailed(
        f"the process was not started as the program {program}: if it is another"
        " program, give --program; the parts of a quickstart cannot be diagnosed"
    )


def _environment(text: str) -> Mapping[str, str]:
    pairs = (each.partition("=") for each in text.split("\0") if each)
    return {name: value for name, _, value in pairs}


def _subject(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Subject:
    options = _options_class(program)(environment)
    subject = import_module(f"yurttunnel.{program}.command").subject
    options.parseOptions(arguments)
    return cast(Subject, subject(options.settings))


@dataclass(frozen=True, slots=True)
class _ProcessInfo:
    """A process's own information: its name, and the address of its meta port."""

    program: str
    meta_host: str
    meta_port: int


def _process_info(process: Process) -> _ProcessInfo | None:
    """Query the process; return ``None`` if it does not respond."""
    try:
        info = Process(process.path, DISCOVERY_SECONDS).get("/v1/process")
    except CommandFailed:
        return None
    page = urlsplit(info["status_page"])
    return _ProcessInfo(info["program"], page.hostname or "", page.port or 0)


def _subject_without_flags(program: str, process: Process, info: _ProcessInfo) -> Subject:
    """Return what is known of a process whose flags are unknown."""
    table = _options_class(program).table
    secret = (each for each in table if isinstance(each, Flag) and each.secret)
    return Subject(
        program=info.program,
        meta_host=info.meta_host,
        meta_port=info.meta_port,
        directories=(process.path.parent,),
        files=(),
        secret_flags=tuple(f"--{each.name}" for each in secret),
    )


def _options_class(program: str) -> type[CommandOptions[Any]]:
    return cast(type[CommandOptions[Any]], import_module(f"yurttunnel.{program}.options").Options)


def _with_absolute_paths(directory: Path, subject: Subject) -> Subject:
    """Return ``subject`` with its relative paths resolved from ``directory``."""
    return subject._replace(
        directories=tuple(directory / each for each in subject.directories),
        files=tuple(directory / each for each in subject.files),
    )


DIAGNOSE = ClientCommand(
    "diagnose", "collect diagnostic data and list problems", DiagnoseOptions, diagnose
)
