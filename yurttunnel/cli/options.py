"""The command-line options that all commands share, except for the programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from twisted.python import usage

from yurttunnel.cli.client import CommandFailed, Process
from yurttunnel.cli.cluster import Kubectl, Server, servers
from yurttunnel.cli.discovery import running_processes, select_process
from yurttunnel.ops import flags
from yurttunnel.ops.command_line import STATUS
from yurttunnel.ops.flag_table import Entry, Flag, Group, Switch
from yurttunnel.ops.help import Help
from yurttunnel.ops.options import CommandOptions

PROGRAM_NAME, PLUGIN_NAME = "yurttunnel", "kubectl yurttunnel"
"""The words before the name of a command, and of one that kubectl runs."""

_Response = TypeVar("_Response")


STATE_DIR = Flag(
    "state-dir",
    Group.BASICS,
    flags.path,
    "State directory of the process to query (in a cluster its --cert-dir, for a hub its"
    " --root-dir). [default: $YURTTUNNEL_STATE_DIR, or that of the only process that this user or"
    " root runs on this machine]",
    variable="YURTTUNNEL_STATE_DIR",
)

OUTPUT = Flag(
    "output",
    Group.BASICS,
    flags.one_of("text", "json"),
    "Output format: text for people, json for programs (docs/admin.md).",
    default="text",
    short="o",
)


NAMES = ("server", "agent", "hub", "proxy")
"""The programs that have an admin socket."""


PROGRAM = Flag(
    "program",
    Group.BASICS,
    flags.one_of(*NAMES),
    "Program to query: server, agent, hub or proxy.",
    default="server",
)


IN_CLUSTER = Switch(
    "in-cluster",
    Group.CLUSTER,
    "Query the servers of a cluster with kubectl instead of a process on this machine;"
    ' "kubectl yurttunnel" implies it. Requires permission to list pods, and either to get'
    " pods/proxy, or to get pods and create pods/portforward.",
)

NAMESPACE = Flag(
    "namespace",
    Group.CLUSTER,
    flags.namespace,
    "Namespace of the servers.",
    default="kube-system",
    short="n",
)

META_PORT = Flag(
    "meta-port", Group.CLUSTER, flags.port, "Meta port of the servers.", default="10265"
)

KUBECONFIG = Flag("kubeconfig", Group.CLUSTER, str, "Path of the kubeconfig, passed to kubectl.")

CONTEXT = Flag("context", Group.CLUSTER, str, "Context of the kubeconfig, passed to kubectl.")

CLUSTER_TABLE: tuple[Entry, ...] = (IN_CLUSTER, NAMESPACE, META_PORT, KUBECONFIG, CONTEXT)
"""The flags of commands that can query a cluster."""


@dataclass(frozen=True, slots=True)
class Word:
    """A positional argument; ``parse`` is like that of a flag."""

    name: str
    parse: Callable[[str], object] = str

    @property
    def choices(self) -> Sequence[str]:
        """Its possible values, if they are known."""
        return self.parse.choices if isinstance(self.parse, flags.OneOf) else ()

    @property
    def expected(self) -> str:
        """A description of the expected value."""
        *others, last = self.choices or ("it",)
        return f"{', '.join(others)} or {last}" if others else last


class ClientOptions(CommandOptions[None]):
    """Options of a command that is not a program, and usually queries a running process.

    ``words`` are the positional arguments, of which the first ``required`` are required; flags may
    follow them.
    """

    is_program = False

    has_words = True

    behind_kubectl = False
    """Whether kubectl runs the command, which then always queries a cluster."""

    words: Sequence[Word] = ()

    required = 1

    _reported_failures: Sequence[str] = ()
    """What was last reported of servers that did not respond."""

    def make_settings(self) -> None:
        """Check all values, and that each has an effect; the command itself converts them."""
        for entry in self.table:
            if isinstance(entry, Flag) and self[entry.name] is not None:
                self.value(entry)
        if self.in_cluster and self._has_flag(STATE_DIR):
            raise usage.UsageError(
                "--state-dir has no effect in a cluster, which is queried through its API: leave"
                " it out"
            )
        for flag in (NAMESPACE, META_PORT):
            if self._has_flag(flag) and not self.in_cluster:
                raise usage.UsageError(
                    f"--{flag.name} is for a cluster: add --in-cluster, or run kubectl"
                    f" {self.invocation}"
                )

    def _has_flag(self, entry: Entry) -> bool:
        """Return whether the command line has a flag, with whatever value."""
        return entry.name in self._command_line

    def help(self) -> Help:
        names = [each.name for each in self.words]
        optional = [f"[{name}]" for name in names[self.required :]]
        hidden = (IN_CLUSTER, STATE_DIR) if self.behind_kubectl else ()
        return (
            super()
            .help()
            ._replace(
                words=(*names[: self.required], *optional),
                table=[each for each in self.table if each not in hidden],
            )
        )

    def parseArgs(self, *arguments: str) -> None:
        if missing := self.words[len(arguments) : self.required]:
            raise usage.UsageError(f"{missing[0].name} is missing: give {missing[0].expected}")
        super().parseArgs(*arguments[len(self.words) :])
        for word, text in zip(self.words, arguments, strict=False):
            try:
                word.parse(text)
            except ValueError as reason:
                raise usage.UsageError(str(reason)) from None
        self.positionals = arguments

    @property
    def as_json(self) -> bool:
        """Whether JSON output is requested."""
        return self.value(OUTPUT) == "json"

    def process(self, program: str) -> Process:
        """Return the selected process of ``program``, such as a ``server``."""
        return select_process(self.state_dir, program, running_processes())

    @property
    def program_name(self) -> str:
        """The words before the name of the command."""
        return PLUGIN_NAME if self.behind_kubectl else PROGRAM_NAME

    @property
    def in_cluster(self) -> bool:
        """Whether to query the servers of a cluster."""
        return self.behind_kubectl or any(
            self._has_flag(each) for each in (IN_CLUSTER, KUBECONFIG, CONTEXT)
        )

    def servers(self) -> Sequence[Process | Server]:
        """Return the servers to query: the one on this machine, or all of a cluster."""
        if not self.in_cluster:
            return [self.process("server")]
        positionals = [
            f"--{flag.name}={self[flag.name]}" for flag in (KUBECONFIG, CONTEXT) if self[flag.name]
        ]
        return servers(Kubectl(tuple(positionals)), self.value(NAMESPACE), self.value(META_PORT))

    def query(self, get: Callable[[Process | Server], _Response]) -> list[_Response]:
        """Return what ``get`` returns for all servers; report those that do not respond.

        A server may have ended since it was found, as in every rollout. Raises
        :class:`CommandFailed` if none responds.
        """
        responses: list[_Response] = []
        failed: list[CommandFailed] = []
        for server in self.servers():
            try:
                responses.append(get(server))
            except CommandFailed as error:
                failed.append(error)
        if failed and not responses:
            raise failed[-1]
        sentences = [str(each) for each in failed]
        for sentence in sentences:
            # Repeated queries (--watch) report a failure only when it changes.
            if sentence not in self._reported_failures:
                print(f"not queried: {sentence}", file=sys.stderr)
        self._reported_failures = sentences
        return responses

    @property
    def state_dir(self) -> Path | None:
        """The state directory, if it is given."""
        value = self[STATE_DIR.name] or self._environment.get(STATE_DIR.variable)
        return self.value(STATE_DIR) if value else None


class Command(Protocol):
    """``yurttunnel NAME``; ``text`` describes it in a line."""

    @property
    def name(self) -> str:
        """The name: one or two words."""

    @property
    def text(self) -> str:
        """The description, in a line."""

    def options(self) -> CommandOptions[Any]:
        """Return its options."""

    def run(self, arguments: Sequence[str]) -> None:
        """Run it with the arguments after its name; ``SystemExit`` has the exit status."""


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """``yurttunnel NAME``, which calls ``act(options)``; that may return the exit status."""

    name: str
    text: str
    make_options: Callable[[], ClientOptions]
    act: Callable[[Any], int | None]
    behind_kubectl: bool = False

    def options(self) -> ClientOptions:
        """Return its options."""
        options = self.make_options()
        options.behind_kubectl = self.behind_kubectl
        options.invocation = f"{options.program_name} {self.name}"
        return options

    def run(self, arguments: Sequence[str]) -> None:
        """Run it; an error is one line on standard error."""
        options = self.options()
        try:
            options.parseOptions(arguments)
            status = self.act(options) or 0
        except usage.UsageError as error:
            print(f"{options.program_name} {self.name}: {error}", file=sys.stderr)
            status = STATUS
        except CommandFailed as error:
            print(f"{options.program_name} {self.name}: {error}", file=sys.stderr)
            status = 1
        raise SystemExit(status)
