"""Creates the discovery and OpenAPI documents from the kinds and the published schemas.

``python -m tests.apiserver.documents`` writes the lab's documents for its kinds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

import kubernetes

import yurtlab.api
from tests.apiserver.discovery import Discovery
from tests.apiserver.kinds import RESOURCES
from tests.apiserver.openapi import OpenAPI
from tests.apiserver.schemas import Schemas
from yurtlab.api.documents import Document, Documents
from yurtlab.api.resources import RESOURCES as LAB
from yurtlab.api.resources import Resource

FILE = Path(yurtlab.api.__file__).with_name("documents.json")


def make(kinds: Sequence[Resource]) -> Document:
    """Return the content of :class:`Documents` for these kinds."""
    schemas, discovery = Schemas(kinds), Discovery(kinds)
    return {
        "made of": f"kubernetes {kubernetes.__version__}",
        "discovery": discovery.plain(),
        "aggregated": discovery.aggregated(),
        "openapi": OpenAPI(kinds, schemas).documents(),
        "schemas": schemas.definitions,
    }


def written(content: Document) -> str:
    """Return the content in the file's format: a line for each document and each schema."""
    parts = []
    for name, part in content.items():
        if isinstance(part, dict):
            lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in part.items())
            parts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(part)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


@functools.cache
def all_documents() -> Documents:
    """Return the documents for all kinds, the lab's and the others."""
    return Documents(make(RESOURCES))


if __name__ == "__main__":
    FILE.write_text(written(make(LAB)))
