"""The selectors of a request, and the part of them that can be evaluated without the API."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from yurttunnel.http.errors import RequestFailed
from yurttunnel.hub.cache.errors import BodyDamaged
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.media.interfaces import Item
from yurttunnel.hub.request.requests import MAX_SELECTORS, ApiRequest, Form, ResourceType
from yurttunnel.kube.selectors import LABEL_SPACES, BadSelector, FieldTerm, field_terms, label_test

PODS = ResourceType("", "v1", "pods")

Selector = Callable[[Item], bool]
"""Returns whether an item is selected."""

_MAX_REMEMBERED = 1024
"""Maximum length of selectors whose parsed form is cached, so that the memory is limited."""

_FIELDS: dict[str, Callable[[Item], str]] = {
    "metadata.name": lambda item: item.name,
    "metadata.namespace": lambda item: item.namespace,
    "spec.nodeName": lambda item: item.node,
}


def scope_of(client: str, request: ApiRequest, form: Form) -> Scope:
    """Return the scope of a list or a watch of ``client``, in the form of its response.

    ``client`` is that of :class:`Collection`; ``request.resource`` must be set. Raises
    ``RequestFailed`` (400) for invalid selectors, and (503) for selectors longer than
    :data:`MAX_SELECTORS`, which only the API evaluates.
    """
    assert request.resource is not None
    options = request.options
    if not options.label_selector and not options.field_selector:
        return Scope(_collection(client, request.resource, form), request.namespace)
    if len(options.label_selector) + len(options.field_selector) > MAX_SELECTORS:
        text = f"nothing is cached for selectors of more than {MAX_SELECTORS} characters"
        raise RequestFailed(503, text)
    if "\0" in options.label_selector or "\0" in options.field_selector:
        # SQLite's length() stops at a NUL, and no label or field can contain one.
        raise RequestFailed(400, "a selector has a NUL character")
    labels = options.label_selector.strip(LABEL_SPACES)
    try:
        # Tables and metadata do not contain the node of a pod.
        pods = request.resource == PODS and not form.transform
        fields, view = split_fields(options.field_selector, pods)
        _test(labels, fields)
    except BadSelector as error:
        raise RequestFailed(400, str(error)) from None
    collection = _collection(client, request.resource, form)._replace(view=view)
    return Scope(collection, request.namespace, labels, fields)


@lru_cache(1024)
def _collection(client: str, resource: ResourceType, form: Form) -> Collection:
    return Collection(client, str(resource), str(form))


def split_fields(field_selector: str, pods: bool) -> tuple[str, str]:
    """Return the part of a field selector that :func:`selector` evaluates, and the rest, the view.

    Both are sorted, so that equivalent selectors are equal strings. ``spec.nodeName`` is evaluated
    for pods only. Raises :class:`BadSelector`.
    """
    if len(field_selector) > _MAX_REMEMBERED:
        return _split(field_selector, pods)
    return _split_remembered(field_selector, pods)


def _split(field_selector: str, pods: bool) -> tuple[str, str]:
    terms = sorted(set(field_terms(field_selector)))
    known = [term for term in terms if _is_known(term, pods)]
    rest = [term for term in terms if not _is_known(term, pods)]
    return ",".join(map(str, known)), ",".join(map(str, rest))


_split_remembered = lru_cache(1024)(_split)


def _is_known(term: FieldTerm, pods: bool) -> bool:
    return term.field in _FIELDS and (pods or term.field != "spec.nodeName")


def changing_part(scope: Scope) -> Scope:
    """Return the part of a scope that an object can leave while it still exists.

    This is the whole collection if there is none: the name and namespace of an object, and the node
    of a scheduled pod, never change.
    """
    terms = field_terms(scope.field_selector)
    lasts = all(term.field != "spec.nodeName" or (term.same and term.value) for term in terms)
    return scope._replace(namespace="", field_selector="" if lasts else scope.field_selector)


def has_one_name(scope: Scope) -> bool:
    """Return whether all objects of a scope have the same name."""
    terms = field_terms(scope.field_selector)
    return any(term.field == "metadata.name" and term.same for term in terms)


def selector(scope: Scope) -> Selector:
    """Return a function that selects the items of a scope from its collection, by namespace, too.

    Raises :class:`BadSelector`, but not for scopes from :func:`scope_of`.
    """
    test = _test(scope.label_selector, scope.field_selector)
    namespace = scope.namespace
    if not namespace:
        return test
    return lambda item: item.namespace == namespace and test(item)


def stored_selector(scope: Scope) -> Selector:
    """Return the :func:`selector` of a scope from the file.

    Raises :class:`BodyDamaged` if it has changed on the disk.
    """
    try:
        return selector(scope)
    except (BadSelector, KeyError):
        raise BodyDamaged.of_row(f"{scope.label_selector} {scope.field_selector}") from None


def _test(label_selector: str, field_selector: str) -> Selector:
    if len(label_selector) + len(field_selector) > _MAX_REMEMBERED:
        return _make_test(label_selector, field_selector)
    return _remembered_test(label_selector, field_selector)


def _make_test(label_selector: str, field_selector: str) -> Selector:
    fields = [(_FIELDS[term.field], term) for term in field_terms(field_selector)]
    if not label_selector:
        return lambda item: all(term.holds(read(item)) for read, term in fields)
    labels = label_test(label_selector)
    return lambda item: labels(item.labels) and all(term.holds(read(item)) for read, term in fields)


_remembered_test = lru_cache(1024)(_make_test)
