"""YAML parsing with a single error type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml  # type: ignore[import-untyped] # PyYAML has no types of its own

_TIME = "tag:yaml.org,2002:timestamp"


# The C implementation is ten times as fast, but not available on every machine.
class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # untyped
    """Parses timestamps as text, as Kubernetes does, whose objects are JSON."""

    yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0] != _TIME]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def yaml_document(content: str | bytes) -> Any:
    """Return the only document, ``None`` if there is none; raises ``ValueError``."""
    with _one_kind_of_error():
        return yaml.load(content, Loader)


def yaml_documents(content: str | bytes) -> list[Any]:
    """Return all documents; raises ``ValueError``."""
    with _one_kind_of_error():
        return list(yaml.load_all(content, Loader))


@contextmanager
def _one_kind_of_error() -> Iterator[None]:
    try:
        yield
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        # PyYAML raises KeyError ("!!bool foo"), IndexError, AttributeError and others for a value
        # that does not match its tag.
        raise ValueError(f"it has a value that cannot be read: {error!r}") from error
