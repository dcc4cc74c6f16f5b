"""Deployments, DaemonSets and Jobs, stored with the defaults of Kubernetes; nothing here runs them.

The rules are those of pkg/apis/apps/v1/defaults.go, pkg/apis/apps/validation and
pkg/registry/batch/job.
"""

from __future__ import annotations

import copy
from typing import Any

from yurtlab.api import names
from yurtlab.api.access import User
from yurtlab.api.errors import Cause, invalid_value, not_supported, required
from yurtlab.api.pods import set_pod_defaults, validate_pod_spec
from yurtlab.api.store import Object
from yurtlab.api.strategy import Strategy

Defaults = dict[str, Any]

DEPLOYMENT_DEFAULTS: Defaults = {
    "replicas": 1,
    "strategy": {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    },
    "revisionHistoryLimit": 10,
    "progressDeadlineSeconds": 600,
}
DAEMON_SET_DEFAULTS: Defaults = {
    "updateStrategy": {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    },
    "revisionHistoryLimit": 10,
}


class WorkloadStrategy(Strategy):
    """The strategy of kinds with a template of pods.

    ``word`` is the kind in messages, ``defaults`` are those of the specification.
    """

    def __init__(self, word: str, defaults: Defaults) -> None:
        self._word = word
        self._defaults = defaults

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Fill in defaults."""
        self._set_defaults(body)
        body["status"] = {}

    def validate(self, body: Object) -> list[Cause]:
        """Return the errors in a new object."""
        return super().validate(body) + _validate(self._word, body["spec"])

    def prepare_for_update(self, body: Object, current: Object) -> None:
        """Fill in defaults."""
        self._set_defaults(body)

    def validate_update(self, body: Object, current: Object) -> list[Cause]:
        """Return the errors in a change: the selector is immutable."""
        causes = super().validate_update(body, current) + _validate(self._word, body["spec"])
        selector = body["spec"].get("selector")
        if selector != current["spec"].get("selector"):
            causes.append(invalid_value("spec.selector", selector, "field is immutable"))
        return causes

    def _set_defaults(self, body: Object) -> None:
        spec = body.setdefault("spec", {})
        _merge_defaults(spec, self._defaults)
        set_pod_defaults(spec.setdefault("template", {}).setdefault("spec", {}))


JOB_NAME = "batch.kubernetes.io/job-name"
"""The label of the pods of a Job (k8s.io/api/batch/v1, ``JobNameLabel``)."""


class JobStrategy(Strategy):
    """The strategy of Jobs."""

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Set the label that identifies its pods, and the selector (``generateSelector``)."""
        labels = {JOB_NAME: body["metadata"]["name"]}
        template = body["spec"]["template"]
        template.setdefault("metadata", {}).setdefault("labels", {}).update(labels)
        body["spec"]["selector"] = {"matchLabels": labels}
        body["status"] = {}


def _merge_defaults(target: Object, defaults: Defaults) -> None:
    for key, value in defaults.items():
        if key not in target:
            target[key] = copy.deepcopy(value)
        elif isinstance(value, dict) and target[key].get("type") in (None, value.get("type")):
            _merge_defaults(target[key], value)


def _validate(word: str, spec: Object) -> list[Cause]:
    causes: list[Cause] = []
    selector, template = spec.get("selector"), spec["template"]
    labels = template.get("metadata", {}).get("labels", {})
    if selector is None:
        causes.append(required("spec.selector"))
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        text = f"empty selector is invalid for {word}"
        causes.append(invalid_value("spec.selector", selector, text))
    elif any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        text = "`selector` does not match template `labels`"
        causes.append(invalid_value("spec.template.metadata.labels", labels, text))
    causes += [
        Cause(cause.reason, cause.message, f"spec.template.{cause.field}")
        for cause in names.validate_labels(template.get("metadata", {}))
    ]
    causes += validate_pod_spec(template["spec"], "spec.template.spec")
    policy = template["spec"]["restartPolicy"]
    if policy in ("OnFailure", "Never"):
        field = "spec.template.spec.restartPolicy"
        causes.append(not_supported(field, policy, ("Always",)))
    return causes
