"""All kinds: those of the lab, and the others, which are in ``kinds.json``."""

from __future__ import annotations

from pathlib import Path

from tests.apiserver.columns import CELLS
from yurtlab.api.errors import ApiError
from yurtlab.api.resources import RESOURCES as LAB
from yurtlab.api.resources import SERVICE_ACCOUNTS, Resource, load_kinds
from yurtlab.api.store import Object, Store

FURTHER = load_kinds(Path(__file__).with_name("kinds.json"), CELLS)

_BY_NAME = {kind.plural: kind for kind in FURTHER}

RESOURCES = (*(kind for kind in LAB if kind.plural not in _BY_NAME), *FURTHER)
"""All kinds: those of the lab, unless replaced here, and the others."""

CERTIFICATE_SIGNING_REQUESTS = _BY_NAME["certificatesigningrequests"]
CLUSTER_ROLES = _BY_NAME["clusterroles"]
CLUSTER_ROLE_BINDINGS = _BY_NAME["clusterrolebindings"]
DAEMON_SETS = _BY_NAME["daemonsets"]
DEPLOYMENTS = _BY_NAME["deployments"]
ENDPOINTS = _BY_NAME["endpoints"]
JOBS = next(kind for kind in LAB if kind.plural == "jobs")
POD_DISRUPTION_BUDGETS = _BY_NAME["poddisruptionbudgets"]
ROLES = _BY_NAME["roles"]
ROLE_BINDINGS = _BY_NAME["rolebindings"]
SELF_SUBJECT_ACCESS_REVIEWS = _BY_NAME["selfsubjectaccessreviews"]
SELF_SUBJECT_REVIEWS = _BY_NAME["selfsubjectreviews"]
SELF_SUBJECT_RULES_REVIEWS = _BY_NAME["selfsubjectrulesreviews"]
SUBJECT_ACCESS_REVIEWS = _BY_NAME["subjectaccessreviews"]
TOKEN_REVIEWS = _BY_NAME["tokenreviews"]

TOKEN_REQUESTS = SERVICE_ACCOUNTS.subresource("token").body
"""What is only served as ``serviceaccounts/NAME/token``."""


def look_up(store: Store, kind: Resource, namespace: str | None, name: str) -> Object | None:
    """Return an object, or ``None`` if it does not exist."""
    try:
        return store.get(kind, namespace, name)
    except ApiError:
        return None
