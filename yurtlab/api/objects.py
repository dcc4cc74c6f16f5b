"""The verbs that create, change and delete objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yurtlab.api import errors
from yurtlab.api.access import User
from yurtlab.api.documents import Documents, WrongType, read
from yurtlab.api.namespaces import Namespaces
from yurtlab.api.options import DeleteOptions, Selector, WriteOptions
from yurtlab.api.patches import BadPatch, PatchFailed, json_patch, merge_patch, strategic_merge
from yurtlab.api.resources import NAMESPACES, Resource, Target
from yurtlab.api.store import Object, Store
from yurtlab.api.strategy import Strategy

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH)
"""The types of patches, by media type."""

_PATCHES: Mapping[str, Callable[[Any, Any], Any]] = {
    JSON_PATCH: json_patch,
    MERGE_PATCH: merge_patch,
    STRATEGIC_MERGE_PATCH: strategic_merge,
    # A simple form of server-side apply: the configuration is merged, without field ownership.
    APPLY_PATCH: strategic_merge,
}


@dataclass(slots=True)
class WriteResult:
    """An object as it was stored, whether it is new, and the warnings for the client."""

    object: Object
    created: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VirtualKind:
    """A query that clients make by creating an object of ``kind``, which is not stored.

    ``answer`` gets the target, the object and the user, and returns the object with the result.
    """

    kind: Resource
    answer: Callable[[Target, Object, User], Object]


class Objects:
    """Changes the objects of ``store`` for clients.

    ``strategies`` has the kinds with a strategy of their own. All methods raise ``ApiError``.
    """

    def __init__(
        self,
        store: Store,
        documents: Documents,
        namespaces: Namespaces,
        strategies: Mapping[Resource, Strategy],
    ) -> None:
        self._store = store
        self._documents = documents
        self._namespaces = namespaces
        self._strategies = strategies

    def create(
        self, target: Target, body: Object, options: WriteOptions, user: User
    ) -> WriteResult:
        """Create an object in the target's namespace."""
        kind = target.kind
        body, warnings = self._read(kind, body, options)
        metadata = body["metadata"]
        _check_identity(target, metadata)
        name = metadata.get("name") or metadata.get("generateName", "")
        if kind.namespaced:
            self._namespaces.check_active(kind, target.namespace or "", name)
        if metadata.pop("resourceVersion", ""):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        strategy = self._strategy(kind)
        strategy.prepare_for_create(body, user)
        _refuse(kind, name, strategy.validate(body))
        strategy.admit(body, user)
        created = self._store.create(kind, target.namespace, body, options.dry_run)
        return WriteResult(created, True, warnings)

    def answer(
        self,
        virtual_kind: VirtualKind,
        target: Target,
        body: Object,
        options: WriteOptions,
        user: User,
    ) -> WriteResult:
        """Return the result for an object that ``user`` creates as a query."""
        asked, warnings = self._read(virtual_kind.kind, body, options)
        answer = virtual_kind.answer(target, asked, user)
        made = {
            "kind": virtual_kind.kind.kind,
            "apiVersion": virtual_kind.kind.api_version,
            **answer,
        }
        return WriteResult(made, True, warnings)

    def update(
        self, target: Target, body: Object, options: WriteOptions, user: User
    ) -> WriteResult:
        """Replace the target, or its status."""
        body, warnings = self._read(target.kind, body, options)
        _check_identity(target, body["metadata"])
        return self._write(target, body, options, user, warnings)

    def patch(
        self, target: Target, patch_type: str, patch: Any, options: WriteOptions, user: User
    ) -> WriteResult:
        """Change the target, or its status, with a patch of one of :data:`PATCH_TYPES`."""
        assert target.name is not None
        applied = patch_type == APPLY_PATCH
        if applied and not options.field_manager:
            raise errors.bad_request(
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value:'
                " is required for apply patch"
            )
        where = (target.kind, target.namespace, target.name)
        if applied and target.subresource is None and self._store.find(*where) is None:
            return self.create(target, _as_object(patch), options, user)
        patched = _patched(target.kind, self._store.get(*where), patch_type, patch)
        body, warnings = self._read(target.kind, patched, options)
        _check_identity(target, body["metadata"])
        return self._write(target, body, options, user, warnings)

    def delete(self, target: Target, options: DeleteOptions) -> Object:
        """Delete the target; return its state then, which is marked as deleted if it remains."""
        assert target.name is not None
        kind, namespace, name = target.kind, target.namespace, target.name
        current = self._store.get(kind, namespace, name)
        _check_preconditions(kind, current, options)
        if kind is NAMESPACES:
            return self._namespaces.delete(name, self._end, options.dry_run)
        grace = self._strategy(kind).grace_period(current, options.grace)
        if grace > 0:
            return self._store.mark_deleted(kind, namespace, name, grace, options.dry_run)
        return self._store.remove(kind, namespace, name, options.dry_run)

    def _end(self, kind: Resource, namespace: str, name: str) -> None:
        self.delete(Target(kind, namespace, name), DeleteOptions())

    def delete_all(
        self, target: Target, selector: Selector, options: DeleteOptions
    ) -> list[Object]:
        """Delete what ``selector`` selects in the target; return it as :meth:`delete` does."""
        found = filter(selector, self._store.list(target.kind, target.namespace))
        places = [one["metadata"] for one in found]
        return [
            self.delete(Target(target.kind, place.get("namespace"), place["name"]), options)
            for place in places
        ]

    def _write(
        self, target: Target, body: Object, options: WriteOptions, user: User, warnings: list[str]
    ) -> WriteResult:
        assert target.name is not None
        kind, namespace, name = target.kind, target.namespace, target.name
        current, strategy = self._store.get(kind, namespace, name), self._strategy(kind)
        if target.subresource is None:
            strategy.prepare_for_update(body, current)
            _refuse(kind, name, strategy.validate_update(body, current))
        else:
            strategy.prepare_subresource(target.subresource, body, current)
            _refuse(kind, name, strategy.validate_subresource(target.subresource, body, current))
            strategy.admit_subresource(target.subresource, body, current, user)
        written = self._store.replace(
            kind, namespace, name, body, target.subresource, options.dry_run
        )
        return WriteResult(written, False, warnings)

    def _read(
        self, kind: Resource, body: Object, options: WriteOptions
    ) -> tuple[Object, list[str]]:
        """Validate a body's structure; unknown fields are rejected, warned about or dropped."""
        claimed = f'{body.get("kind")} in version "{body.get("apiVersion")}"'
        prefix = f"{claimed} cannot be handled as a {kind.kind}"
        if body.get("kind", kind.kind) != kind.kind or (
            body.get("apiVersion", kind.api_version) != kind.api_version
        ):
            raise errors.bad_request(f"{prefix}: it is of another kind or version")
        try:
            checked, unknown = read(self._documents, kind, body)
        except WrongType as error:
            raise errors.bad_request(f"{prefix}: {error}") from None
        checked.setdefault("metadata", {})
        problems = [f'unknown field "{path}"' for path in unknown]
        if problems and options.field_validation == "Strict":
            raise errors.bad_request(f"{prefix}: strict decoding error: {', '.join(problems)}")
        return checked, problems if options.field_validation == "Warn" else []

    def _strategy(self, kind: Resource) -> Strategy:
        return self._strategies.get(kind) or Strategy()


def _patched(kind: Resource, current: Object, patch_type: str, patch: Any) -> Object:
    name = current["metadata"]["name"]
    if patch_type != JSON_PATCH:
        patch = _as_object(patch)
    try:
        patched = _PATCHES[patch_type](current, patch)
    except BadPatch as error:
        raise errors.bad_request(str(error)) from None
    except PatchFailed as error:
        raise errors.unprocessable(kind.group, kind.plural, name, str(error)) from None
    result = _as_object(patched)
    if not isinstance(result.get("metadata"), dict):
        raise errors.bad_request("the patch leaves no metadata")
    return result


def _as_object(value: Any) -> Object:
    if not isinstance(value, dict):
        raise errors.bad_request("the body is not an object")
    return value


def _check_identity(target: Target, metadata: Object) -> None:
    """Check name and namespace of a body against the path, and set them from there."""
    if target.namespace is not None:
        if metadata.setdefault("namespace", target.namespace) != target.namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )
    elif metadata.pop("namespace", ""):
        raise errors.bad_request(f"namespace is not allowed for {target.kind.plural}")
    if target.name is not None and metadata.setdefault("name", target.name) != target.name:
        raise errors.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL"
            f" ({target.name})"
        )


def _check_preconditions(kind: Resource, current: Object, options: DeleteOptions) -> None:
    metadata = current["metadata"]
    for label, desired, actual in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.version, metadata["resourceVersion"]),
    ):
        if desired and desired != actual:
            text = (
                f"Precondition failed: {label} in precondition: {desired},"
                f" {label} in object meta: {actual}"
            )
            raise errors.conflict(kind.group, kind.plural, metadata["name"], text)


def _refuse(kind: Resource, name: str, causes: list[errors.Cause]) -> None:
    if causes:
        raise errors.invalid(kind.group, kind.kind, name, causes)
