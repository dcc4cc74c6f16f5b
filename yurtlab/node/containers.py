"""A container of a pod: its process, run after run, and its state.

What a process of this machine cannot have is rejected, with an alternative. Resource requests and
limits are an exception: they determine the pod's QoS class, but are not enforced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.interfaces import IDelayedCall

from yurtlab.api.pods import NORMAL, WARNING
from yurtlab.node import leftovers
from yurtlab.node.attach import Attachments
from yurtlab.node.environment import (
    ConfigError,
    Object,
    Sources,
    container_arguments,
    container_environment,
)
from yurtlab.node.logs import ContainerLog
from yurtlab.node.processes import Exit, Process, Program, StartFailed
from yurtlab.timers import cancel

# The kubelet's MaxContainerBackOff, its first step, and the run time that resets the backoff.
_FIRST_BACKOFF_SECONDS = 10.0
_MAX_BACKOFF_SECONDS = 300.0
_BACKOFF_RESET_SECONDS = 600.0

# A missing ConfigMap may exist at the next attempt.
_CONFIG_RETRY_SECONDS = 10.0

# The exit code of container runtimes for a program that could not be started.
_NOT_STARTED_CODE = 128

_UNSUPPORTED = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")

NO_COMMAND = (
    "this node runs programs of this machine, not images: give a command, as in:"
    " kubectl run web --image=none -- python3 -m http.server 8080"
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The container does not run at present."""

    reason: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True)
class Running:
    """The container has run since ``started``, in seconds since 1970."""

    started: float
    container_id: str


@dataclass(frozen=True, slots=True)
class Terminated:
    """The container has terminated; times are in seconds since 1970."""

    exit: Exit
    reason: str
    message: str
    started: float
    finished: float
    container_id: str


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerContext:
    """The context of a container from its pod and the node.

    ``pod`` is the pod's object, ``directory`` its own; ``mark`` identifies the node's run and the
    pod (see :mod:`yurtlab.node.leftovers`); ``record`` records events.
    """

    pod: Object
    sources: Sources
    directory: Path
    mark: str
    record: Callable[[str, str, str, str], object]


class Container:
    """A container by its specification; ``changed()`` is called when its state has changed.

    ``reactor`` is that of its processes. ``first`` is the initial reason why it does not run.
    """

    def __init__(
        self,
        reactor: Any,
        context: ContainerContext,
        spec: Object,
        changed: Callable[[], object],
        first: str = "ContainerCreating",
    ) -> None:
        self._reactor = reactor
        self._context = context
        self._changed = changed
        self.spec = spec
        self.name: str = spec["name"]
        self.terminal = bool(spec.get("tty"))
        self.stdin = bool(spec.get("stdin"))
        self.state: State = Waiting(first)
        self.last: Terminated | None = None
        self.restarts = 0
        self.log: ContainerLog | None = None
        self.previous_log: ContainerLog | None = None
        self.attachments = Attachments(reactor, bool(spec.get("stdinOnce")), self.terminal)
        self._process: Process | None = None
        self._program: Program | None = None
        self._instance = 0
        self._started = 0.0
        self._backoff = 0.0
        self._timer: IDelayedCall | None = None

    @property
    def mark(self) -> str:
        """The mark of all its processes, in all runs."""
        return f"{self._context.mark}/{self.name}/"

    def processes(self, found: list[leftovers.Found]) -> list[leftovers.Found]:
        """Return its processes among ``found``."""
        return leftovers.marked_processes(
            found, self.mark, self._process.pid if self._process else None
        )

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return isinstance(self.state, Running)

    @property
    def untried(self) -> bool:
        """Whether it has not been started yet, and is not waiting for a retry."""
        return self._instance == 0 and self._timer is None

    @property
    def ended(self) -> Terminated | None:
        """The result of its last run; ``None`` while it runs and before the first."""
        return self.state if isinstance(self.state, Terminated) else None

    # Runs

    def start(self) -> None:
        """Start it; an error is recorded in its state."""
        try:
            program = self._make_program()
            logs = self._context.directory / "logs" / self.name
            log = ContainerLog(logs / f"{self._instance}.log")
        except (ConfigError, OSError) as error:
            self.state = Waiting("CreateContainerConfigError", str(error))
            self._timer = self._reactor.callLater(_CONFIG_RETRY_SECONDS, self.start)
            self._record(WARNING, "Failed", f"Error: {error}")
            self._changed()
            return
        if isinstance(self.state, Terminated):
            self.last = self.state
        if self._instance:
            self.restarts += 1
        if self.previous_log is not None:
            self.previous_log.remove()
        self.previous_log, self.log = self.log, log
        self._instance += 1
        self._started = self._reactor.seconds()
        self._run(program)
        self._changed()

    def restart(self) -> None:
        """Restart it: at once after the first exit, then with backoff."""
        ended = self.ended
        if ended is None:
            return
        if ended.finished - ended.started > _BACKOFF_RESET_SECONDS:
            self._backoff = 0.0
        delay = self._backoff
        self._backoff = min(max(_FIRST_BACKOFF_SECONDS, 2 * delay), _MAX_BACKOFF_SECONDS)
        if not delay:
            self.start()
            return
        pod = self._context.pod["metadata"]
        name = f"{pod['name']}_{pod['namespace']}({pod['uid']})"
        self.last = ended
        self.state = Waiting(
            "CrashLoopBackOff",
            f"back-off {_duration(delay)} restarting failed container={self.name} pod={name}",
        )
        text = f"Back-off restarting failed container {self.name} in pod {name}"
        self._record(WARNING, "BackOff", text)
        self._timer = self._reactor.callLater(delay, self.start)
        self._changed()

    def stop(self, grace: float) -> None:
        """Terminate it for good, and kill it after ``grace`` seconds."""
        cancel(self._timer)
        if self._process is not None:
            self._record(NORMAL, "Killing", f"Stopping container {self.name}")
            self._process.stop(grace)
        elif self.last is not None and isinstance(self.state, Waiting):
            # It was waiting for a restart.
            self.state = self.last

    def remove(self) -> None:
        """Delete its logs."""
        for log in (self.log, self.previous_log):
            if log is not None:
                log.remove()

    def command(self, arguments: Sequence[str], stdin: bool, terminal: bool) -> Program | None:
        """Return a program to run in the container, or ``None`` if that does not run."""
        own = self._program
        if own is None or not self.running:
            return None
        environment = dict(own.environment)
        if terminal:
            environment["TERM"] = "xterm"
        return Program(arguments, environment, own.directory, stdin, terminal)

    # How it goes

    def _run(self, program: Program) -> None:
        self._program = program
        try:
            process = Process(self._reactor, program, self._output, self._ended, self._exited)
        except StartFailed as failed:
            self._terminated(Exit(_NOT_STARTED_CODE), "StartError", str(failed), "")
            self._record(WARNING, "Failed", f"Error: {failed}")
            return
        self._process = process
        self.state = Running(self._started, _container_id(process))
        self.attachments.process_started(process)
        self._record(NORMAL, "Started", f"Started container {self.name}")

    def _output(self, stream: str, data: bytes) -> None:
        if self.log is not None:
            self.log.write(stream, data)
        self.attachments.output(stream, data)

    def _exited(self, pid: int) -> None:
        """Kill leftovers of the process: a container ends with its own process."""
        leftovers.kill_all(self.mark, pid)

    def _ended(self, end: Exit) -> None:
        process, self._process = self._process, None
        reason = "Completed" if end.code == 0 else "Error"
        self._terminated(end, reason, "", _container_id(process) if process else "")
        self._changed()

    def _terminated(self, end: Exit, reason: str, message: str, container_id: str) -> None:
        finished = self._reactor.seconds()
        self.state = Terminated(end, reason, message, self._started, finished, container_id)
        if self.log is not None:
            self.log.close()
        self.attachments.process_ended()

    # What it runs

    def _make_program(self) -> Program:
        """Return its program. Raises :class:`ConfigError`."""
        self._reject_unsupported()
        context = self._context
        directory = context.directory / "work" / self.name
        directory.mkdir(parents=True, exist_ok=True)
        base = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(directory),
            "HOSTNAME": context.pod["metadata"]["name"],
        }
        if self.terminal:
            base["TERM"] = "xterm"
        environment = container_environment(self.spec, base, context.sources)
        arguments = container_arguments(self.spec, environment)
        environment[leftovers.VARIABLE] = f"{self.mark}{self._instance}"
        working = self.spec.get("workingDir") or ""
        return Program(arguments, environment, str(directory / working), self.stdin, self.terminal)

    def _reject_unsupported(self) -> None:
        if not self.spec.get("command") and not self.spec.get("args"):
            raise ConfigError(NO_COMMAND)
        mounts = ", ".join(mount["mountPath"] for mount in self.spec.get("volumeMounts") or ())
        if mounts:
            raise ConfigError(
                "this node runs programs of this machine, which see its own files: remove the"
                f" volumeMounts ({mounts})"
            )
        if self.spec.get("restartPolicy"):
            raise ConfigError(
                "this node has no sidecars: make the init container with a restartPolicy one of"
                " the containers"
            )
        unsupported = [key for key in _UNSUPPORTED if self.spec.get(key)]
        if self._context.pod["spec"].get("activeDeadlineSeconds"):
            unsupported.append("activeDeadlineSeconds")
        if unsupported:
            raise ConfigError(
                "this node has no probes, no lifecycle hooks and no deadlines of pods: remove"
                f" {', '.join(unsupported)}"
            )
        self._reject_other_user()

    def _reject_other_user(self) -> None:
        """Reject another user than the specified one, above all root."""
        own = os.getuid()
        pod_context = self._context.pod["spec"].get("securityContext") or {}
        security_context = {**pod_context, **(self.spec.get("securityContext") or {})}
        user = security_context.get("runAsUser", own)
        if user != own:
            raise ConfigError(
                f"this node runs programs as its own user, which is {own}: remove runAsUser: {user}"
            )
        if security_context.get("runAsNonRoot") and own == 0:
            raise ConfigError("container has runAsNonRoot and this node runs programs as root")

    def _record(self, kind: str, reason: str, message: str) -> None:
        self._context.record(self.name, kind, reason, message)


def _container_id(process: Process) -> str:
    return f"process://{process.pid}"


def _duration(seconds: float) -> str:
    """Format an integer number of seconds as Go does."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
