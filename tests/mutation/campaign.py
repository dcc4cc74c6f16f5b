"""Run the tests that belong to a mutant, in a copy of the tree, several mutants at a time."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant

FOUND, SURVIVED = "found", "survived"

MIN_TIME_LIMIT = 30.0
TIME_FACTOR = 4.0
"""The time limit of a stage's tests: this multiple of their time without a change, plus the seconds
above. A mutant that makes them hang counts as found."""

_ABOVE_ROOMS = (Path("yurttunnel"), Path())

ELSEWHERE = {
    "agent": ("tests.pki.test_cluster_agent",),
    "wire": ("tests.tunnel",),
    "tunnel": (
        "tests.server.test_agents tests.server.test_agents_back tests.server.test_agents_replaced",
        "tests.server.frontends",
        "tests.agent",
    ),
    "http": ("tests.server.frontends.kubelet", "tests.kube"),
    "pki": ("tests.adversarial.test_enrolment", "tests.adversarial.test_certificates"),
    "kube": (
        "tests.yurtlab.api.test_selectors",
        "tests.steering.dns",
        "tests.cluster",
        "tests.pki",
    ),
    "cluster": ("tests.server", "tests.steering"),
    "steering": ("tests.server.test_steering", "tests.server.test_in_cluster"),
    "ops": (
        "tests.deploy.test_monitoring",
        "tests.deploy.test_operations",
        "tests.server",
        "tests.agent",
    ),
    "metrics.py": (
        "tests.ops.test_metrics tests.ops.test_exposition",
        "tests.ops",
        "tests.deploy.test_operations",
        "tests.server",
    ),
}
"""Tests in other packages that test a package in one process. They run last."""

_TESTED_WITH = {"metrics.py": "ops"}
"""The package whose tests cover a module that is in no package."""

TYPES = "mypy"
"""The last stage, after all tests: defects that mypy finds never reach the tests."""

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".tox", "_trial_temp*", "__pycache__", "*.pyc")


class TestsFail(Exception):
    """Tests fail without a mutant, so that they cannot find any."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a mutant, and the stage that found it."""

    mutant: Mutant
    result: str
    by: str


class Results:
    """The results of former runs, one a line of a file, so that a run can be resumed.

    A result is valid while the module and the tests of its package are unchanged.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                key, result, by = json.loads(line)
                self._known[key] = (result, by)

    def known(self, mutant: Mutant) -> Verdict | None:
        """Return the result of a mutant, if it is known."""
        known = self._known.get(self._key(mutant))
        return None if known is None else Verdict(mutant, *known)

    def add(self, verdict: Verdict) -> None:
        """Append a result to the file."""
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps([self._key(verdict.mutant), verdict.result, verdict.by]) + "\n")

    def _key(self, mutant: Mutant) -> str:
        room = room_of(mutant.path)
        tests = self._root / "tests" / _TESTED_WITH.get(room, room)
        digest = _digest([self._root / mutant.path, *sorted(tests.rglob("*.py"))])
        return f"{mutant.name} {digest}"


class Campaign:
    """Tests mutants, each in one of several copies of the tree."""

    def __init__(self, root: Path, directory: Path, copies: int) -> None:
        self._root = root
        self._trees: queue.Queue[Path] = queue.Queue()
        self._copies = copies
        self._limits: dict[str, float] = {}
        for number in range(copies):
            tree = directory / str(number)
            shutil.copytree(root, tree, ignore=_LEFT_OUT)
            self._trees.put(tree)

    def run(self, mutants: Sequence[Mutant], done: Callable[[Verdict], None]) -> None:
        """Test each mutant; ``done`` is called with each verdict, in any thread.

        Raises `TestsFail` when tests fail without a mutant.
        """
        stages = {stage for mutant in mutants for stage in stages_for(mutant.path, self._root)}
        with ThreadPoolExecutor(self._copies) as pool:
            for stage, limit in pool.map(self._baseline, [TYPES, *sorted(stages)]):
                self._limits[stage] = limit
            for verdict in pool.map(self._try, mutants):
                done(verdict)

    def _baseline(self, stage: str) -> tuple[str, float]:
        with self._tree() as tree:
            began = time.monotonic()
            status, output = _run_stage(tree, stage, "yurttunnel", 20 * MIN_TIME_LIMIT)
            if status != 0:
                raise TestsFail(f"{stage} fails without a mutant:\n{output[-2000:]}")
            return stage, MIN_TIME_LIMIT + TIME_FACTOR * (time.monotonic() - began)

    def _try(self, mutant: Mutant) -> Verdict:
        with self._tree() as tree:
            module = tree / mutant.path
            source = module.read_bytes()
            module.write_bytes(mutant.applied_to(source))
            try:
                for stage in [*stages_for(mutant.path, self._root), TYPES]:
                    status, _ = _run_stage(tree, stage, mutant.path, self._limits[stage])
                    if status != 0:
                        return Verdict(mutant, FOUND, stage)
            finally:
                module.write_bytes(source)
        return Verdict(mutant, SURVIVED, "")

    @contextmanager
    def _tree(self) -> Iterator[Path]:
        tree = self._trees.get()
        try:
            yield tree
        finally:
            self._trees.put(tree)


def room_of(path: str) -> str:
    """Return the room of a module: a package below ``yurttunnel``, or ``yurtlab`` as a whole.

    A module outside of all packages is its own room.
    """
    top, below, *_ = Path(path).parts
    return below if top == "yurttunnel" else top


def stages_for(path: str, root: Path) -> list[str]:
    """Return the tests of a module: names for trial, those first that are likely to fail soon.

    First the nearby test modules that import it, see :func:`_importers`, then all tests of its
    package and of each package above, then those of :data:`ELSEWHERE`.
    """
    module = Path(path).with_suffix("")
    stages: list[str] = []
    for package in module.parents:
        if package in _ABOVE_ROOMS:
            break
        directory = Path("tests", *package.parts[package.parts[0] == "yurttunnel" :])
        if (root / directory).is_dir():
            if not stages and (importers := _importers(root, directory, module)):
                stages.append(importers)
            stages.append(_dotted(directory))
    room = room_of(path)
    if (root / "tests" / room / "bounds.txt").exists():
        stages.append(f"tests.test_bounds.BoundsTests.test_{room}")
    return [*stages, *ELSEWHERE.get(room, ())] or ["tests"]


def _importers(root: Path, directory: Path, module: Path) -> str:
    """Return the names of a directory's test modules that import a module, itself or by what they
    share: its own first, and those that import it themselves before others.
    """
    texts = {
        path.relative_to(root).with_suffix(""): path.read_text()
        for path in (root / directory).rglob("*.py")
    }
    itself = {path for path, text in texts.items() if _imports(text, module)}
    shared = {path for path in itself if not path.name.startswith("test_")}
    found = [
        path
        for path, text in texts.items()
        if path.name.startswith("test_")
        and (path in itself or any(_imports(text, each) for each in shared))
    ]
    found.sort(key=lambda path: (path.name != f"test_{module.name}", path not in itself, path))
    return " ".join(map(_dotted, found))


def _imports(text: str, module: Path) -> bool:
    package, name = re.escape(_dotted(module.parent)), re.escape(module.name)
    importing = rf"^(from|import) {package}\.{name}\b(?!\.)|^from {package} import .*\b{name}\b"
    return re.search(importing, text, re.MULTILINE) is not None


def _dotted(path: Path) -> str:
    return ".".join(path.parts)


def _run_stage(tree: Path, stage: str, path: str, limit: float) -> tuple[int, str]:
    """Run tests up to the first failure, or check the types of ``path``. Return status and output.

    A timeout counts as a failure.
    """
    arguments = ["mypy", path] if stage == TYPES else ["twisted.trial", "-x", *stage.split()]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 1, f"no end within {limit:.0f} s"
    return process.returncode, output


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
