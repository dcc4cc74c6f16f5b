"""Services, EndpointSlices and Endpoints in files, as ``kubectl apply -f`` accepts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.kube.resources import Object
from yurttunnel.kube.yaml_documents import yaml_documents
from yurttunnel.ops.plain_files import read_plain
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.threads import Jobs
from yurttunnel.proxy.state.endpoint_slices import SERVICE_NAME, EndpointSlice, endpoint_slice_from
from yurttunnel.proxy.state.parsing import Problems, quoted
from yurttunnel.proxy.state.services import Service, service_from
from yurttunnel.proxy.state.virtual_services import Problem

MAX_BYTES = 16 * 1024 * 1024
"""The maximum size of a file: 1,000 Services with 10,000 endpoints take 4 MB of YAML."""

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
"""The suffixes of files in a directory that are read, as for the kubelet's static pods."""

_EMPTY_FILE = (
    "it is empty, perhaps because it is being written; for no Services at all put a comment into it"
)

_Signature = tuple[int, int, int]
_UNREAD = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Manifests:
    """The content of a file; ``signature`` changes with it, ``parsed`` if it ever was valid."""

    signature: _Signature = _UNREAD
    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    problems: tuple[Problem, ...] = ()
    parsed: bool = False


def read_manifests(path: Path, known: Mapping[Path, Manifests]) -> dict[Path, Manifests]:
    """Return the content of the file ``path``, or of each file in the directory.

    A ``known`` file is read if it has changed; if that fails, its previous content stays. Raises
    ``OSError`` if the files cannot be listed.
    """
    if not path.is_dir():
        return {path: _current(path, known)}
    found = {}
    for each in sorted(path.iterdir()):
        if each.suffix not in SUFFIXES or each.name.startswith("."):
            continue
        try:
            found[each] = _current(each, known)
        except FileNotFoundError as error:
            # Any other missing file was removed after the directory was read.
            if each.is_symlink():
                found[each] = _unread(each, None, _UNREAD, error.strerror)
    return found


def _current(path: Path, known: Mapping[Path, Manifests]) -> Manifests:
    before = known.get(path)
    try:
        status = path.stat()
        signature = (status.st_mtime_ns, status.st_ino, status.st_size)
        if before is not None and signature == before.signature:
            return before
        content = read_plain(path, MAX_BYTES)
        if not content:
            raise ValueError(_EMPTY_FILE)
        return _parsed(path, content, signature)
    except FileNotFoundError as error:
        if before is None:
            raise
        return _unread(path, before, _UNREAD, error.strerror)
    except OSError as error:
        return _unread(path, before, _UNREAD, error.strerror)
    except (ValueError, RecursionError) as error:
        return _unread(path, before, signature, error)


def _unread(path: Path, before: Manifests | None, signature: _Signature, why: object) -> Manifests:
    previous = before or Manifests()
    suffix = ", and its previous content stays in use" if previous.parsed else ""
    reason = " ".join(str(why).split())
    problem = Problem(f"file {path}", f"it cannot be read{suffix}: {reason}")
    return replace(previous, signature=signature, problems=(problem,))


def _parsed(path: Path, content: bytes, signature: _Signature) -> Manifests:
    problems = Problems(f"file {path}")
    services: list[Service | None] = []
    slices: list[EndpointSlice | None] = []
    for obj in _objects(_documents(path, content)):
        metadata = mapping(obj.get("metadata"))
        if not text(metadata.get("name")):
            problems.add(f"an object of kind {quoted(obj.get('kind'))} has no name: it is ignored")
            continue
        namespace = text(metadata.get("namespace")) or "default"
        named = {**obj, "metadata": {**metadata, "namespace": namespace}}
        kind = obj.get("kind")
        if kind == "Service":
            services.append(service_from(named))
        elif kind == "EndpointSlice":
            slices.append(endpoint_slice_from(named))
        elif kind == "Endpoints":
            slices += [endpoint_slice_from(each) for each in _as_endpoint_slices(named)]
        else:
            problems.add(
                f"an object of kind {quoted(kind)} is ignored: only Service, EndpointSlice and"
                f" Endpoints are supported"
            )
    return Manifests(
        signature,
        tuple(each for each in services if each is not None),
        tuple(each for each in slices if each is not None),
        problems.all(),
        parsed=True,
    )


def _documents(path: Path, content: bytes) -> list[Any]:
    if path.suffix == ".json":
        return [json.loads(content)]
    return yaml_documents(content)


def _objects(documents: list[Any]) -> Iterator[Object]:
    """Yield the objects, including those in lists; raises ``ValueError`` for anything else."""
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ValueError(f"{quoted(document)} is not an object of the API")
        if text(document.get("kind")).endswith("List"):
            yield from (dict(each) for each in objects(document.get("items")))
        else:
            yield document


def _as_endpoint_slices(endpoints: Object) -> Iterator[Object]:
    """Yield the equivalent EndpointSlices: one for each subset and address family.

    EndpointSlices have replaced the kind Endpoints since Kubernetes 1.21.
    """
    metadata = mapping(endpoints.get("metadata"))
    name = text(metadata.get("name"))
    for number, subset in enumerate(objects(endpoints.get("subsets"))):
        for version in (4, 6):
            yield {
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": metadata.get("namespace"),
                    "name": f"{name}-{number}-ipv{version}",
                    "labels": {**mapping(metadata.get("labels")), SERVICE_NAME: name},
                },
                "addressType": f"IPv{version}",
                "ports": subset.get("ports"),
                "endpoints": [
                    each for each in _of_subset(subset) if _version(each["addresses"][0]) == version
                ],
            }


def _of_subset(subset: Mapping[str, Any]) -> Iterator[Object]:
    for key, ready in (("addresses", True), ("notReadyAddresses", False)):
        for each in objects(subset.get(key)):
            yield {
                "addresses": [text(each.get("ip"))],
                "conditions": {"ready": ready},
                "nodeName": each.get("nodeName"),
            }


def _version(address: str) -> int:
    return 6 if ":" in address else 4


CHECK_SECONDS = 5.0
"""The interval of the checks, as in the earliest file source of kube-proxy."""


class FileSource(MultiService):
    """Follows the file or directory ``path``; calls ``notify()`` when the content has changed.

    ``manifests`` are by file; if several files have the same object, the first one counts. They are
    read in ``thread``. The source is ``complete`` once each file has been read: until then, what a
    previous process served stays. Later, if the files cannot be checked or read, the previous
    content stays in use, and ``problems`` reports it.
    """

    def __init__(
        self, clock: IReactorTime, thread: Jobs, path: Path, notify: Callable[[], object]
    ) -> None:
        super().__init__()
        self.complete = False
        self.problems: tuple[Problem, ...] = ()
        self._thread = thread
        self._path = path
        self._notify = notify
        self.manifests: dict[Path, Manifests] = {}
        checks = Reconciler(clock, CHECK_SECONDS, f"reading {path}", self._check)
        checks.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        self._thread.end()
        stopped: Deferred[None] = super().stopService()
        return stopped

    async def _check(self) -> bool:
        before = self.complete, self.manifests, self.problems
        try:
            found = await self._thread.run(partial(read_manifests, self._path, self.manifests))
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
            self.problems = (Problem(f"file {self._path}", why),)
            is_read = False
        else:
            is_read = True
            self.manifests = found
            self.complete = self.complete or all(file.parsed for file in found.values())
            self.problems = tuple(problem for file in found.values() for problem in file.problems)
        if before != (self.complete, self.manifests, self.problems):
            self._notify()
        return is_read
