"""The messages that clients write in the binary form of Kubernetes, with their fields.

The numbers are those of ``generated.proto`` in k8s.io/api and k8s.io/apimachinery.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """A field: what it is called in JSON, and its type, which may be another message.

    Go writes values that are not set as zeros, and JSON leaves them out; ``kept`` are pointers
    in Go, which are written only when they are set.
    """

    name: str
    type: str = "string"
    repeated: bool = False
    kept: bool = False


def entries(name: str, values: str = "string") -> Field:
    """Make a field that is a map of texts to ``values``."""
    return Field(name, f"map of {values}")


MESSAGES: dict[str, dict[int, Field]] = {
    "ObjectMeta": {
        1: Field("name"),
        2: Field("generateName"),
        3: Field("namespace"),
        5: Field("uid"),
        6: Field("resourceVersion"),
        11: entries("labels"),
        12: entries("annotations"),
        14: Field("finalizers", repeated=True),
    },
    "Namespace": {1: Field("metadata", "ObjectMeta")},
    "ConfigMap": {
        1: Field("metadata", "ObjectMeta"),
        2: entries("data"),
        3: entries("binaryData", "bytes"),
        4: Field("immutable", "bool", kept=True),
    },
    "Secret": {
        1: Field("metadata", "ObjectMeta"),
        2: entries("data", "bytes"),
        3: Field("type"),
        4: entries("stringData"),
        5: Field("immutable", "bool", kept=True),
    },
    "ServiceAccount": {
        1: Field("metadata", "ObjectMeta"),
        2: Field("secrets", "ObjectReference", repeated=True),
        3: Field("imagePullSecrets", "LocalObjectReference", repeated=True),
        4: Field("automountServiceAccountToken", "bool", kept=True),
    },
    "ObjectReference": {
        1: Field("kind"),
        2: Field("namespace"),
        3: Field("name"),
        4: Field("uid"),
        5: Field("apiVersion"),
        6: Field("resourceVersion"),
        7: Field("fieldPath"),
    },
    "LocalObjectReference": {1: Field("name")},
    "Service": {1: Field("metadata", "ObjectMeta"), 2: Field("spec", "ServiceSpec")},
    "ServiceSpec": {
        1: Field("ports", "ServicePort", repeated=True),
        2: entries("selector"),
        3: Field("clusterIP"),
        4: Field("type"),
        5: Field("externalIPs", repeated=True),
        7: Field("sessionAffinity"),
        8: Field("loadBalancerIP"),
        9: Field("loadBalancerSourceRanges", repeated=True),
        10: Field("externalName"),
        11: Field("externalTrafficPolicy"),
    },
    "ServicePort": {
        1: Field("name"),
        2: Field("protocol"),
        3: Field("port", "int"),
        4: Field("targetPort", "IntOrString"),
        5: Field("nodePort", "int"),
        6: Field("appProtocol", kept=True),
    },
    "CertificateSigningRequest": {
        1: Field("metadata", "ObjectMeta"),
        2: Field("spec", "CertificateSigningRequestSpec"),
        3: Field("status", "CertificateSigningRequestStatus"),
    },
    "CertificateSigningRequestSpec": {
        1: Field("request", "bytes"),
        2: Field("username"),
        3: Field("uid"),
        4: Field("groups", repeated=True),
        5: Field("usages", repeated=True),
        6: entries("extra", "ExtraValue"),
        7: Field("signerName"),
        8: Field("expirationSeconds", "int", kept=True),
    },
    "CertificateSigningRequestStatus": {
        1: Field("conditions", "CertificateSigningRequestCondition", repeated=True),
        2: Field("certificate", "bytes"),
    },
    "CertificateSigningRequestCondition": {
        1: Field("type"),
        2: Field("reason"),
        3: Field("message"),
        4: Field("lastUpdateTime", "Time"),
        5: Field("lastTransitionTime", "Time"),
        6: Field("status"),
    },
    "ExtraValue": {1: Field("items", repeated=True)},
    "Time": {1: Field("seconds", "int"), 2: Field("nanos", "int")},
    "TokenRequest": {
        1: Field("metadata", "ObjectMeta"),
        2: Field("spec", "TokenRequestSpec"),
    },
    "TokenRequestSpec": {
        1: Field("audiences", repeated=True),
        3: Field("boundObjectRef", "BoundObjectReference"),
        4: Field("expirationSeconds", "int", kept=True),
    },
    "BoundObjectReference": {
        1: Field("kind"),
        2: Field("apiVersion"),
        3: Field("name"),
        4: Field("uid"),
    },
    "ClusterRole": {
        1: Field("metadata", "ObjectMeta"),
        2: Field("rules", "PolicyRule", repeated=True),
    },
    "Role": {
        1: Field("metadata", "ObjectMeta"),
        2: Field("rules", "PolicyRule", repeated=True),
    },
    "PolicyRule": {
        1: Field("verbs", repeated=True),
        2: Field("apiGroups", repeated=True),
        3: Field("resources", repeated=True),
        4: Field("resourceNames", repeated=True),
        5: Field("nonResourceURLs", repeated=True),
    },
    "ClusterRoleBinding": {
        1: Field("metadata", "ObjectMeta"),
        2: Field("subjects", "Subject", repeated=True),
        3: Field("roleRef", "RoleRef"),
    },
    "RoleBinding": {
        1: Field("metadata", "ObjectMeta"),
        2: Field("subjects", "Subject", repeated=True),
        3: Field("roleRef", "RoleRef"),
    },
    "Subject": {
        1: Field("kind"),
        2: Field("apiGroup"),
        3: Field("name"),
        4: Field("namespace"),
    },
    "RoleRef": {1: Field("apiGroup"), 2: Field("kind"), 3: Field("name")},
    "DeleteOptions": {
        1: Field("gracePeriodSeconds", "int", kept=True),
        2: Field("preconditions", "Preconditions"),
        4: Field("propagationPolicy", kept=True),
        5: Field("dryRun", repeated=True),
    },
    "SelfSubjectReview": {},
    "SelfSubjectAccessReview": {2: Field("spec", "SelfSubjectAccessReviewSpec")},
    "SelfSubjectAccessReviewSpec": {
        1: Field("resourceAttributes", "ResourceAttributes"),
        2: Field("nonResourceAttributes", "NonResourceAttributes"),
    },
    "SelfSubjectRulesReview": {2: Field("spec", "SelfSubjectRulesReviewSpec")},
    "SelfSubjectRulesReviewSpec": {1: Field("namespace")},
    "ResourceAttributes": {
        1: Field("namespace"),
        2: Field("verb"),
        3: Field("group"),
        4: Field("version"),
        5: Field("resource"),
        6: Field("subresource"),
        7: Field("name"),
    },
    "NonResourceAttributes": {1: Field("path"), 2: Field("verb")},
    "Preconditions": {1: Field("uid", kept=True), 2: Field("resourceVersion", kept=True)},
    "IntOrString": {1: Field("type", "int"), 2: Field("number", "int"), 3: Field("text")},
    # k8s.io/apimachinery pkg/runtime: what all bodies are wrapped in.
    "Unknown": {1: Field("typeMeta", "TypeMeta"), 2: Field("raw", "raw")},
    "TypeMeta": {1: Field("apiVersion"), 2: Field("kind")},
}
