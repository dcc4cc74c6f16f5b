"""The kinds of the core group."""

from __future__ import annotations

from yurtlab.api import columns
from yurtlab.api.group_resources import TOKEN_REQUESTS
from yurtlab.api.pod_columns import POD_COLUMNS
from yurtlab.api.resource import (
    Resource,
    SelectableField,
    Subresource,
    fields,
    status,
)

NAMESPACES = Resource(
    "v1",
    "namespaces",
    "namespace",
    "Namespace",
    "V1Namespace",
    short_names=("ns",),
    namespaced=False,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    subresources=(status("Namespace"),),
    selectable_fields=fields("status.phase"),
    columns=columns.NAMESPACE_COLUMNS,
)

NODES = Resource(
    "v1",
    "nodes",
    "node",
    "Node",
    "V1Node",
    short_names=("no",),
    namespaced=False,
    subresources=(
        Subresource("proxy", "NodeProxyOptions", ("create", "delete", "get", "patch", "update")),
        status("Node"),
    ),
    selectable_fields=(SelectableField("spec.unschedulable", default="false"),),
    columns=columns.NODE_COLUMNS,
)

PODS = Resource(
    "v1",
    "pods",
    "pod",
    "Pod",
    "V1Pod",
    short_names=("po",),
    categories=("all",),
    subresources=(
        Subresource("attach", "PodAttachOptions", ("create", "get")),
        Subresource("ephemeralcontainers", "Pod", ("get", "patch", "update")),
        Subresource("exec", "PodExecOptions", ("create", "get")),
        Subresource("log", "Pod", ("get",)),
        Subresource("portforward", "PodPortForwardOptions", ("create", "get")),
        Subresource("proxy", "PodProxyOptions", ("create", "delete", "get", "patch", "update")),
        status("Pod"),
    ),
    counts_generations=True,
    selectable_fields=(
        *fields(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        SelectableField("spec.hostNetwork", default="false"),
    ),
    columns=POD_COLUMNS,
)

CONFIG_MAPS = Resource(
    "v1",
    "configmaps",
    "configmap",
    "ConfigMap",
    "V1ConfigMap",
    short_names=("cm",),
    columns=columns.CONFIG_MAP_COLUMNS,
)
SECRETS = Resource(
    "v1",
    "secrets",
    "secret",
    "Secret",
    "V1Secret",
    selectable_fields=fields("type"),
    columns=columns.SECRET_COLUMNS,
)
SERVICE_ACCOUNTS = Resource(
    "v1",
    "serviceaccounts",
    "serviceaccount",
    "ServiceAccount",
    "V1ServiceAccount",
    short_names=("sa",),
    subresources=(Subresource("token", "TokenRequest", ("create",), TOKEN_REQUESTS),),
    columns=columns.SERVICE_ACCOUNT_COLUMNS,
)
SERVICES = Resource(
    "v1",
    "services",
    "service",
    "Service",
    "V1Service",
    short_names=("svc",),
    categories=("all",),
    subresources=(
        Subresource("proxy", "ServiceProxyOptions", ("create", "delete", "get", "patch", "update")),
        status("Service"),
    ),
    selectable_fields=fields("spec.clusterIP", "spec.type"),
    columns=columns.SERVICE_COLUMNS,
)
ENDPOINTS = Resource(
    "v1",
    "endpoints",
    "endpoints",
    "Endpoints",
    "V1Endpoints",
    short_names=("ep",),
    columns=columns.ENDPOINTS_COLUMNS,
)
EVENTS = Resource(
    "v1",
    "events",
    "event",
    "Event",
    "CoreV1Event",
    short_names=("ev",),
    keep_at_most=1000,
    selectable_fields=(
        *fields(
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ),
        SelectableField("source", path="source.component"),
    ),
    columns=columns.EVENT_COLUMNS,
)
