"""The kinds of objects that the API serves.

A new kind is a definition in one of the modules of kinds and a line in :data:`RESOURCES`; it then
has discovery, all verbs, watches, patches and a table. What a kind does beyond that (admission,
subresources of the node) is found by the constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from yurttunnel.quickstart.api.core_resources import (
    CONFIG_MAPS,
    ENDPOINTS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from yurttunnel.quickstart.api.group_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    LEASES,
    POD_DISRUPTION_BUDGETS,
    REVIEWS,
    ROLE_BINDINGS,
    ROLES,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SELF_SUBJECT_REVIEWS,
    SELF_SUBJECT_RULES_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REQUESTS,
    TOKEN_REVIEWS,
)
from yurttunnel.quickstart.api.resource import ALL_VERBS, Resource, SelectableField, Subresource

RESOURCES: Sequence[Resource] = (
    NAMESPACES,
    NODES,
    PODS,
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ENDPOINTS,
    EVENTS,
    LEASES,
    CERTIFICATE_SIGNING_REQUESTS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    ROLES,
    ROLE_BINDINGS,
    ENDPOINT_SLICES,
    DEPLOYMENTS,
    DAEMON_SETS,
    POD_DISRUPTION_BUDGETS,
    SELF_SUBJECT_REVIEWS,
    TOKEN_REVIEWS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SELF_SUBJECT_RULES_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
)
"""All kinds."""

__all__ = [
    "ALL_VERBS",
    "CERTIFICATE_SIGNING_REQUESTS",
    "CLUSTER_ROLES",
    "CLUSTER_ROLE_BINDINGS",
    "CONFIG_MAPS",
    "DAEMON_SETS",
    "DEPLOYMENTS",
    "ENDPOINTS",
    "ENDPOINT_SLICES",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "RESOURCES",
    "REVIEWS",
    "ROLES",
    "ROLE_BINDINGS",
    "SECRETS",
    "SELF_SUBJECT_ACCESS_REVIEWS",
    "SELF_SUBJECT_REVIEWS",
    "SELF_SUBJECT_RULES_REVIEWS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "SUBJECT_ACCESS_REVIEWS",
    "TOKEN_REQUESTS",
    "TOKEN_REVIEWS",
    "Resource",
    "SelectableField",
    "Subresource",
]
