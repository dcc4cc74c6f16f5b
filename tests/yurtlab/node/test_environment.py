"""Variables and references in the specification of a container."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.node.environment import (
    ConfigError,
    Sources,
    container_arguments,
    container_environment,
    expand,
)

POD = {
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": "u-1",
        "labels": {"app.kubernetes.io/name": "web"},
        "annotations": {"note": "hello"},
    },
    "spec": {"nodeName": "edge-1", "serviceAccountName": "default"},
}


class ExpandTests(SynchronousTestCase):
    """``$(NAME)``."""

    def test_references(self):
        """References are replaced as in Kubernetes (expand_test.go there)."""
        variables = {"VAR_A": "A", "VAR_B": "B", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}
        for text, expected in {
            "$(VAR_A)": "A",
            "___$(VAR_B)___": "___B___",
            "$(VAR_A)$(VAR_B)": "AB",
            "$(VAR_A)-$(VAR_REF)": "A-$(VAR_A)",
            "$$(VAR_A)": "$(VAR_A)",
            "$$$(VAR_A)": "$A",
            "$$$$(VAR_A)": "$$(VAR_A)",
            "$(UNKNOWN)": "$(UNKNOWN)",
            "foo$(VAR_EMPTY)bar": "foobar",
            "$VAR_A": "$VAR_A",
            "$(VAR_A": "$(VAR_A",
            "${VAR_A}": "${VAR_A}",
            "$": "$",
            "$$": "$",
            "\\$(VAR_A)": "\\A",
            "$)": "$)",
            "$()": "$()",
        }.items():
            self.assertEqual(expand(text, variables), expected, text)


class EnvironmentTests(SynchronousTestCase):
    """Variables."""

    def environment(self, configuration=None, **container):
        """Return the variables of a container besides the base."""
        found = configuration or {}
        sources = Sources(POD, "192.0.2.7", lambda kind, name: found.get((kind, name)))
        made = container_environment(container, {"PATH": "/bin"}, sources)
        self.assertEqual(made.pop("PATH"), "/bin")
        return made

    def error(self, configuration=None, **container):
        """Return the message of a configuration error."""
        return str(self.assertRaises(ConfigError, self.environment, configuration, **container))

    def test_order(self):
        """A value can refer to earlier variables only."""
        env = [
            {"name": "B", "value": "$(A)"},
            {"name": "A", "value": "1"},
            {"name": "C", "value": "$(A)"},
            {"name": "D"},
        ]
        self.assertEqual(self.environment(env=env), {"B": "$(A)", "A": "1", "C": "1", "D": ""})

    def test_fields(self):
        """Fields of the pod can be used."""
        for path, expected in {
            "metadata.name": "web",
            "metadata.namespace": "shop",
            "metadata.uid": "u-1",
            "metadata.labels['app.kubernetes.io/name']": "web",
            "metadata.labels['none']": "",
            "metadata.annotations['note']": "hello",
            "spec.nodeName": "edge-1",
            "spec.serviceAccountName": "default",
            "status.podIP": "192.0.2.7",
            "status.hostIP": "192.0.2.7",
        }.items():
            env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
            self.assertEqual(self.environment(env=env), {"A": expected}, path)

    def test_unknown(self):
        """The error names the unsupported source."""
        env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.unknown"}}}]
        self.assertIn("spec.unknown", self.error(env=env))
        env = [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]
        self.assertIn("resourceFieldRef", self.error(env=env))

    def test_missing(self):
        """A missing ConfigMap, Secret or key gives the kubelet's message."""
        key = {"name": "c", "key": "K"}
        env = [{"name": "A", "valueFrom": {"configMapKeyRef": key}}]
        self.assertEqual(self.error(env=env), 'configmap "c" not found')
        self.assertEqual(
            self.error({("ConfigMap", "c"): {"data": {}}}, env=env),
            "couldn't find key K in ConfigMap shop/c",
        )
        env = [{"name": "A", "valueFrom": {"secretKeyRef": key}}]
        self.assertEqual(self.error(env=env), 'secret "c" not found')

    def test_optional(self):
        """Optional references may be missing."""
        key = {"name": "c", "key": "K", "optional": True}
        env = [{"name": "A", "valueFrom": {"configMapKeyRef": key}}]
        self.assertEqual(self.environment(env=env), {})
        self.assertEqual(self.environment({("ConfigMap", "c"): {}}, env=env), {})

    def test_bad_secret(self):
        """A Secret that is not base64 gives an error."""
        secret = {"metadata": {"name": "s"}, "data": {"K": "?"}}
        env_from = [{"secretRef": {"name": "s"}}]
        self.assertIn("secret s", self.error({("Secret", "s"): secret}, envFrom=env_from))

    def test_arguments(self):
        """Command and arguments are joined, with references replaced."""
        made = container_arguments({"command": ["$(A)", "b"], "args": ["$(A)"]}, {"A": "1"})
        self.assertEqual(made, ["1", "b", "1"])
