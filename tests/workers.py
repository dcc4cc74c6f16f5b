"""The workers of ``trial -jN``, and which tests each of them runs.

Workers are forked after all tests have been imported. Otherwise each would import them again. They
share a fork server, which has imported the programs.

What the tests of a module share is computed in each worker that runs one of them. So a worker runs
all tests of a module, one after the other. Whole programs are run test by test: they are started
for each, and some modules take minutes. These mostly wait, so a few workers start with the others,
which use the processors meanwhile. Tests that run alone precede all others, for which they would
have to wait; those that run beside each other precede these.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator

from twisted.internet.process import Process
from twisted.trial._dist import _WORKER_AMP_STDIN, _WORKER_AMP_STDOUT, disttrial, workertrial
from twisted.trial._dist.disttrial import StartedWorkerPool, WorkerPool
from twisted.trial._dist.functional import takeWhile

ALONE = ("tests.e2e.alone.quiet.", "tests.e2e.alone.")
"""The prefixes of the names of tests that run beside each other only, and of those that run alone;
the first match applies. If they were mixed, a quiet one might wait, and then run without others."""

PROGRAMS = "tests.e2e."
"""The prefix of the names of tests that run whole programs."""

BUSY = 2
"""The number of workers that start with the other tests, as many as there may be processors."""

LONGEST = (
    "tests.e2e.proxy.test_endings.",
    "tests.e2e.test_kubectl_under_faults.",
    "tests.e2e.cluster.",
    "tests.e2e.outages.test_paths.",
    "tests.e2e.test_resumption.",
)
"""The prefixes of the names of tests of programs that take longest, which run first."""

_run_in_order = disttrial.runTests


def distribute() -> None:
    """Fork the workers of trial, and distribute tests, as described above, from now on."""
    WorkerPool._launchWorkerProcesses = _launch
    disttrial.runTests = _run_tests


# -- Processes -------------------------------------------------------------------------------------


class _Worker(Process):
    """A fork of this process that runs the main function of a worker."""

    def _trySpawnInsteadOfFork(self, *arguments) -> bool:
        return False

    def _setupChild(self, fdmap) -> None:
        # These must not be deleted, or they would close descriptors that are no longer theirs.
        self._former = vars(self._reactor).copy()
        super()._setupChild(fdmap)
        # As the interpreter does at its start.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        os.set_inheritable(max(fdmap), False)
        vars(self._reactor).clear()
        self._reactor.__init__()

    def _execChild(self, path, uid, gid, executable, args, environment) -> None:
        sys.argv[:] = args
        # For programs that tests start.
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        workertrial.main()
        # And as at its end.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _launch(pool: WorkerPool, spawn: Callable, protocols: list, arguments: list[str]) -> None:
    # Each worker would need most of a second for it.
    if documents := sys.modules.get("tests.apiserver.documents"):
        documents.all_documents()
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    files = {0: "w", 1: "r", 2: "r", _WORKER_AMP_STDIN: "w", _WORKER_AMP_STDOUT: "r"}
    if programs := sys.modules.get("tests.e2e.fork_server"):
        shared = programs.fork_server().fileno()
        files[shared] = shared
    arguments = [workertrial.__file__, *arguments]
    for protocol in protocols:
        _Worker(spawn.__self__, sys.executable, arguments, {}, None, protocol, childFDs=files)


# -- Distribution ----------------------------------------------------------------------------------


async def _run_tests(
    pool: StartedWorkerPool, cases: Iterable, result, drive: Callable[..., Awaitable[None]]
) -> None:
    kinds: dict[str, list] = {prefix: [] for prefix in (*ALONE, PROGRAMS, "")}
    for case in cases:
        kinds[next(filter(case.id().startswith, kinds))].append(case)
    *alone, programs, others = kinds.values()
    programs.sort(key=lambda case: not case.id().startswith(LONGEST))
    modules = [list(tests) for _, tests in itertools.groupby(others, lambda case: case.__module__)]

    def may_run(_) -> bool:
        return not drive.__self__._exitFirst or result.original.wasSuccessful()

    async def drive_queues(_, queues: list[Iterator], worker) -> None:
        first = 1 if pool.ampWorkers.index(worker) < BUSY else -1
        for batch in itertools.chain(*queues[::first]):
            await drive(result, takeWhile(may_run, batch), worker)
            if worker._failAllReason is not None:
                # It has died, and would fail all other tests at once.
                break

    before = [[[[case] for case in tests]] for tests in alone]
    for queues in (*before, [modules, [[case] for case in programs]]):
        await _run_in_order(pool, [iter(queue) for queue in queues], result, drive_queues)
