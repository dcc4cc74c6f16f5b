"""The kinds of groups other than the core."""

from __future__ import annotations

from yurtlab.api import columns, group_columns
from yurtlab.api.resource import Resource, SelectableField, Subresource, status

LEASES = Resource(
    "v1",
    "leases",
    "lease",
    "Lease",
    "V1Lease",
    group="coordination.k8s.io",
    columns=columns.LEASE_COLUMNS,
)

CERTIFICATE_SIGNING_REQUESTS = Resource(
    "v1",
    "certificatesigningrequests",
    "certificatesigningrequest",
    "CertificateSigningRequest",
    "V1CertificateSigningRequest",
    group="certificates.k8s.io",
    short_names=("csr",),
    namespaced=False,
    subresources=(
        Subresource("approval", "CertificateSigningRequest", ("get", "patch", "update")),
        status("CertificateSigningRequest"),
    ),
    selectable_fields=(SelectableField("spec.signerName"),),
    columns=group_columns.CERTIFICATE_SIGNING_REQUEST_COLUMNS,
)

CLUSTER_ROLES = Resource(
    "v1",
    "clusterroles",
    "clusterrole",
    "ClusterRole",
    "V1ClusterRole",
    group="rbac.authorization.k8s.io",
    namespaced=False,
    columns=group_columns.ROLE_COLUMNS,
)
CLUSTER_ROLE_BINDINGS = Resource(
    "v1",
    "clusterrolebindings",
    "clusterrolebinding",
    "ClusterRoleBinding",
    "V1ClusterRoleBinding",
    group="rbac.authorization.k8s.io",
    namespaced=False,
    columns=group_columns.ROLE_BINDING_COLUMNS,
)
ROLES = Resource(
    "v1",
    "roles",
    "role",
    "Role",
    "V1Role",
    group="rbac.authorization.k8s.io",
    columns=group_columns.ROLE_COLUMNS,
)
ROLE_BINDINGS = Resource(
    "v1",
    "rolebindings",
    "rolebinding",
    "RoleBinding",
    "V1RoleBinding",
    group="rbac.authorization.k8s.io",
    columns=group_columns.ROLE_BINDING_COLUMNS,
)

ENDPOINT_SLICES = Resource(
    "v1",
    "endpointslices",
    "endpointslice",
    "EndpointSlice",
    "V1EndpointSlice",
    group="discovery.k8s.io",
    columns=group_columns.ENDPOINT_SLICE_COLUMNS,
)

DEPLOYMENTS = Resource(
    "v1",
    "deployments",
    "deployment",
    "Deployment",
    "V1Deployment",
    group="apps",
    short_names=("deploy",),
    categories=("all",),
    subresources=(status("Deployment"),),
    counts_generations=True,
    columns=group_columns.DEPLOYMENT_COLUMNS,
)
DAEMON_SETS = Resource(
    "v1",
    "daemonsets",
    "daemonset",
    "DaemonSet",
    "V1DaemonSet",
    group="apps",
    short_names=("ds",),
    categories=("all",),
    subresources=(status("DaemonSet"),),
    counts_generations=True,
    columns=group_columns.DAEMON_SET_COLUMNS,
)

STATEFUL_SETS = Resource(
    "v1",
    "statefulsets",
    "statefulset",
    "StatefulSet",
    "V1StatefulSet",
    group="apps",
    short_names=("sts",),
    categories=("all",),
    subresources=(status("StatefulSet"),),
    counts_generations=True,
)
REPLICA_SETS = Resource(
    "v1",
    "replicasets",
    "replicaset",
    "ReplicaSet",
    "V1ReplicaSet",
    group="apps",
    short_names=("rs",),
    categories=("all",),
    subresources=(status("ReplicaSet"),),
    counts_generations=True,
)
JOBS = Resource(
    "v1",
    "jobs",
    "job",
    "Job",
    "V1Job",
    group="batch",
    categories=("all",),
    subresources=(status("Job"),),
    counts_generations=True,
)
CRON_JOBS = Resource(
    "v1",
    "cronjobs",
    "cronjob",
    "CronJob",
    "V1CronJob",
    group="batch",
    short_names=("cj",),
    categories=("all",),
    subresources=(status("CronJob"),),
    counts_generations=True,
)

MAKE_PODS = frozenset({DEPLOYMENTS, DAEMON_SETS, STATEFUL_SETS, REPLICA_SETS, JOBS, CRON_JOBS})
"""The kinds of which controllers make pods, of which there are none here."""

POD_DISRUPTION_BUDGETS = Resource(
    "v1",
    "poddisruptionbudgets",
    "poddisruptionbudget",
    "PodDisruptionBudget",
    "V1PodDisruptionBudget",
    group="policy",
    short_names=("pdb",),
    subresources=(status("PodDisruptionBudget"),),
    counts_generations=True,
    columns=group_columns.POD_DISRUPTION_BUDGET_COLUMNS,
)


def _review(group: str, plural: str, singular: str, kind: str) -> Resource:
    return Resource(
        "v1",
        plural,
        singular,
        kind,
        f"V1{kind}",
        group=f"{group}.k8s.io",
        namespaced=False,
        verbs=("create",),
    )


# Reviews are answered when they are created, and never stored.
SELF_SUBJECT_REVIEWS = _review(
    "authentication", "selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview"
)
TOKEN_REVIEWS = _review("authentication", "tokenreviews", "tokenreview", "TokenReview")
SELF_SUBJECT_ACCESS_REVIEWS = _review(
    "authorization",
    "selfsubjectaccessreviews",
    "selfsubjectaccessreview",
    "SelfSubjectAccessReview",
)
SELF_SUBJECT_RULES_REVIEWS = _review(
    "authorization", "selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview"
)
SUBJECT_ACCESS_REVIEWS = _review(
    "authorization", "subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview"
)

REVIEWS = frozenset(
    {
        SELF_SUBJECT_REVIEWS,
        TOKEN_REVIEWS,
        SELF_SUBJECT_ACCESS_REVIEWS,
        SELF_SUBJECT_RULES_REVIEWS,
        SUBJECT_ACCESS_REVIEWS,
    }
)
"""The kinds that are questions."""

# Only served as ``serviceaccounts/NAME/token``.
TOKEN_REQUESTS = Resource(
    "v1",
    "tokenrequests",
    "tokenrequest",
    "TokenRequest",
    "AuthenticationV1TokenRequest",
    group="authentication.k8s.io",
    verbs=("create",),
)
