"""The Helm chart renders the same objects as the kustomizations."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml
from twisted.trial import unittest

import yurttunnel
from tests.deploy.chart import chart_file, rendered, rendered_by_helm, why_not_by_helm
from tests.deploy.go_templates import TemplateFailed, Templates
from tests.deploy.rendering import BASE, DEPLOY, flags_of, named, of_kind, render, server_of
from tests.deploy.workloads import KustomizationTestCase, key
from tests.e2e.guides import blocks

OVERLAYS, COMPONENTS = DEPLOY / "overlays", DEPLOY / "components"
MASTER = "https://192.0.2.1:6443"

CASES: dict[str, tuple[dict, list[Path], list[Path]]] = {
    "the base": ({}, [BASE], []),
    "firewall rules": ({"steering": "iptables"}, [OVERLAYS / "iptables"], []),
    "DNS records": ({"steering": "dns"}, [OVERLAYS / "dns"], []),
    "a socket": ({"steering": "egress-selector"}, [OVERLAYS / "egress-selector"], []),
    "TLS": ({"steering": "egress-selector-tcp"}, [OVERLAYS / "egress-selector-tcp"], []),
    "the hub": ({"hub": True}, [OVERLAYS / "hub"], []),
    "the proxy behind a hub": (
        {"hub": True, "proxy": "hub", "monitoring": True},
        [OVERLAYS / "hub", DEPLOY / "proxy-hub", OVERLAYS / "monitoring"],
        [],
    ),
    "pass-through of firewall rules": (
        {"steering": "iptables", "passThrough": True, "protectedPlacement": True},
        [OVERLAYS / "iptables"],
        [COMPONENTS / "pass-through", COMPONENTS / "protected-placement"],
    ),
    "pass-through of DNS records": (
        {"steering": "dns", "passThrough": True, "protectedPlacement": True, "policies": True},
        [OVERLAYS / "dns"],
        [
            COMPONENTS / "pass-through",
            COMPONENTS / "protected-placement",
            COMPONENTS / "approval-policy",
            COMPONENTS / "dns-policy",
        ],
    ),
}
"""Values of the chart, and the equivalent resources and components of a kustomization."""

ARGS, TOLERATIONS = "/spec/template/spec/containers/0/args", "/spec/template/spec/tolerations"

OPERATIONS = (
    "{op: test, path: /spec/replicas, value: 2}",
    "{op: test, path: /spec/replicas, value: 3}",
    "{op: test, path: /spec/strategy/rollingUpdate, value: {maxUnavailable: 1, maxSurge: 0}}",
    "{op: test, path: /spec/none, value: 3}",
    "{op: remove, path: /spec/none}",
    "{op: add, path: /spec/none/further, value: 3}",
    f"{{op: test, path: {ARGS}/0, value: yurthub}}",
    f"{{op: remove, path: {ARGS}/1}}",
    f"{{op: replace, path: {ARGS}/99, value: --v=4}}",
    f"{{op: add, path: {ARGS}/99, value: --v=4}}",
    f"{{op: add, path: {ARGS}/1, value: --v=4}}",
    f"{{op: add, path: {TOLERATIONS}/0, value: {{operator: Exists}}}}",
    f"{{op: add, path: {TOLERATIONS}/2, value: {{operator: Exists}}}}",
    f"{{op: test, path: {TOLERATIONS}/1/effect, value: NoExecute}}",
)
"""Patches of the server's Deployment by RFC 6902, some of which must fail."""

_POD, _CONTAINER = "spec: {template: {spec: %s}}", "{containers: [{name: yurt-tunnel-server, %s}]}"

MERGES = (
    ("Deployment", "yurt-tunnel-server", _POD % "{tolerations: [{operator: Exists}]}"),
    ("Deployment", "yurt-tunnel-server", _POD % "{volumes: [{name: state, $patch: delete}]}"),
    ("Deployment", "yurt-tunnel-server", _POD % "{volumes: [{name: a, emptyDir: {}}]}"),
    ("Deployment", "yurt-tunnel-server", _POD % "{volumes: []}"),
    (
        "Deployment",
        "yurt-tunnel-server",
        _POD % "{topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone,"
        " whenUnsatisfiable: ScheduleAnyway, maxSkew: 3}]}",
    ),
    (
        "Deployment",
        "yurt-tunnel-server",
        _POD % (_CONTAINER % "env: [{name: NODE_IP, valueFrom: null, value: x}, {name: A}]"),
    ),
    (
        "Deployment",
        "yurt-tunnel-server",
        _POD % (_CONTAINER % "ports: [{containerPort: 10262, protocol: TCP, hostPort: 10262}]"),
    ),
    ("Deployment", "yurt-tunnel-server", _POD % (_CONTAINER % "args: []")),
    ("Deployment", "yurt-tunnel-server", "spec: {strategy: null}"),
    ("Deployment", "yurt-tunnel-server", "spec: {strategy: {$patch: delete}}"),
    ("Deployment", "yurt-tunnel-server", "spec: {strategy: {$patch: replace, type: Recreate}}"),
    ("Service", "x-tunnel-server-svc", "spec: {ports: [{port: 10262, nodePort: 31010}]}"),
    ("Service", "x-tunnel-server-svc", "spec: {ports: [{port: 1, name: a}]}"),
    ("ServiceAccount", "yurt-tunnel-agent", "imagePullSecrets: [{name: a}]"),
    ("ClusterRole", "yurt-tunnel-agent", "rules: [{apiGroups: [a], resources: [b], verbs: [c]}]"),
)
"""Kinds and names of objects, and strategic merge patches for them."""

API_VERSIONS = {
    "Deployment": "apps/v1",
    "ClusterRole": "rbac.authorization.k8s.io/v1",
}
"""API versions by kind; ``v1`` for other kinds."""


def by_key(objects):
    """Return objects by their keys, which must be unique."""
    found = {key(each): each for each in objects}
    assert len(found) == len(objects)
    return found


class SameObjectsTests(KustomizationTestCase):
    """``helm install`` and ``kubectl apply -k`` create the same objects."""

    maxDiff = None

    def kustomized(self, resources, components, **fields):
        """Return the objects of a kustomization by their keys."""
        if components:
            fields["components"] = components
        directory = self.kustomization(resources[0], resources=resources, **fields)
        return by_key(render(directory))

    def assert_same(self, desired, objects):
        """Check that the objects are exactly the expected ones."""
        found = by_key(objects)
        self.assertEqual(desired.keys(), found.keys())
        for each, content in desired.items():
            self.assertEqual(content, found[each])

    def test_each_steering_mode(self):
        """Both render the same objects for each kind of steering and its options."""
        for name, (values, resources, components) in CASES.items():
            with self.subTest(name):
                self.assert_same(self.kustomized(resources, components), rendered(**values))

    def test_another_namespace(self):
        """In another namespace only the right to write events for cluster objects stays behind."""
        desired = self.kustomized(
            [OVERLAYS / "dns"],
            [],
            namespace="mine",
            transformers=[DEPLOY / "transformers" / "events-in-default"],
        )
        self.assert_same(desired, rendered("mine", steering="dns"))

    def test_image_replicas_flags_and_patches(self):
        """Changes by values are the same as changes by a kustomization."""
        patch = "- {op: replace, path: /spec/type, value: LoadBalancer}"
        service = {"kind": "Service", "name": "x-tunnel-server-svc"}
        flag = "--cert-dns-names=tunnel.example.com"
        path = "/spec/template/spec/containers/0/args/-"
        workload = {"kind": "Deployment", "name": "yurt-tunnel-server"}
        directory = self.kustomization(BASE)
        content = yaml.safe_load((directory / "kustomization.yaml").read_text())
        content["images"] = [{"name": "yurttunnel", "newName": "own/image", "newTag": "7"}]
        content["replicas"] = [{"name": "yurt-tunnel-server", "count": 5}]
        content["patches"] = [
            {"target": service, "patch": patch},
            {"target": workload, "patch": json.dumps([{"op": "add", "path": path, "value": flag}])},
        ]
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(content))
        values = {
            "image": {"name": "own/image", "tag": "7"},
            "replicas": 5,
            "serverArgs": [flag],
            "patches": [{"target": service, "patch": patch}],
        }
        self.assert_same(by_key(render(directory)), rendered(**values))

    def assert_same_of_patch(self, kind, name, patch):
        """Check that a patch has the same result in both, or fails in both."""
        patches = [{"target": {"kind": kind, "name": name}, "patch": patch}]
        directory = self.kustomization(BASE)
        content = yaml.safe_load((directory / "kustomization.yaml").read_text())
        (directory / "kustomization.yaml").write_text(
            yaml.safe_dump({**content, "patches": patches})
        )
        try:
            desired = by_key(render(directory))
        except AssertionError:
            self.assertRaises(TemplateFailed, rendered, patches=patches)
        else:
            self.assert_same(desired, rendered(patches=patches))

    def test_operations(self):
        """Each RFC 6902 operation has the same result or is rejected by both."""
        for operation in OPERATIONS:
            with self.subTest(operation):
                self.assert_same_of_patch("Deployment", "yurt-tunnel-server", f"- {operation}")

    def test_merges(self):
        """Lists with a merge key are merged, and other lists are replaced."""
        for kind, name, merge in MERGES:
            with self.subTest(merge):
                version = API_VERSIONS.get(kind, "v1")
                head = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\n"
                self.assert_same_of_patch(kind, name, head + merge)

    def test_the_patches_that_files_name(self):
        """The patch in a comment of the base can be used as a value of the chart."""
        lines = (BASE / "agent-rbac.yaml").read_text().splitlines()
        comment = "\n".join(line[2:] for line in lines if line.startswith("#   "))
        ((only,),) = yaml.safe_load(comment).values()
        self.assert_same_of_patch(only["target"]["kind"], only["target"]["name"], only["patch"])


class ValuesTests(unittest.SynchronousTestCase):
    """The effect of the chart's values."""

    def test_the_proxy_gets_the_address_of_the_api(self):
        """The value of the API's address replaces the placeholder in the proxy's flags."""
        objects = rendered(proxy=MASTER, proxyArgs=["--mode=user"])
        arguments, _, flags = flags_of(named(objects, "DaemonSet", "yurt-proxy"))
        self.assertEqual([], arguments)
        self.assertIn(f"--master={MASTER}", flags)
        self.assertEqual("--mode=user", flags[-1])

    def test_the_proxy_is_removed_as_documented(self):
        """The proxy is removed as its page says: its rules everywhere, then the DaemonSet."""
        command = next(
            block.text
            for block in blocks(DEPLOY / "proxy" / "README.md")
            if "--remove-rules-at-exit" in block.text
        )
        _, operation = json.loads(re.search(r"'(\[.*\])'", command)[1])
        target = {"kind": "DaemonSet", "name": "yurt-proxy"}
        patches = [{"target": target, "patch": json.dumps([operation])}]
        objects = rendered(proxy=MASTER, proxyArgs=["--remove-rules-at-exit"], patches=patches)
        proxy = named(objects, "DaemonSet", "yurt-proxy")
        self.assertEqual("--remove-rules-at-exit", flags_of(proxy)[2][-1])
        self.assertEqual("100%", proxy["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"])
        left = {each["metadata"]["name"] for each in rendered(proxy="")}
        self.assertNotIn("yurt-proxy", left)

    def test_the_agents_get_flags_of_their_own(self):
        """The agents' flags apply to the agents only."""
        objects = rendered(agentArgs=["--v=4"])
        *_, flags = flags_of(named(objects, "DaemonSet", "yurt-tunnel-agent"))
        self.assertEqual("--v=4", flags[-1])
        self.assertNotIn("--v=4", flags_of(server_of(objects))[2])

    def test_what_does_not_go_together_is_refused(self):
        """Conflicting values are rejected with a message that names the value."""
        for values, sentence in (
            ({"passThrough": True}, "passThrough: it needs steering"),
            ({"proxyArgs": ["--v=4"]}, "proxyArgs: they need proxy"),
            ({"steering": "iptables", "replicas": 3}, "replicas: with steering: iptables"),
            (
                {"patches": [{"target": {"kind": "Service", "name": "x"}, "patch": "[]"}]},
                "a patch is for Service x, of which there is none",
            ),
            (
                {"serverArgs": ["--v=4"], "patches": [_patch("test", "args/0", "yurthub")]},
                "args has yurttunnel-server where a patch wants yurthub",
            ),
        ):
            error = self.assertRaises(TemplateFailed, rendered, **values)
            self.assertIn(sentence, str(error))

    def test_an_object_can_be_removed(self):
        """A strategic merge patch can delete an object."""
        objects = rendered(
            patches=[
                {
                    "target": {"kind": "PodDisruptionBudget", "name": "yurt-tunnel-server"},
                    "patch": "$patch: delete",
                }
            ]
        )
        self.assertEqual([], of_kind(objects, "PodDisruptionBudget"))

    def test_the_schema_has_every_value_and_mode(self):
        """The schema lists every value and every kind of steering, so that typing errors fail."""
        schema = json.loads(chart_file("values.schema.json"))["properties"]
        values = yaml.safe_load(chart_file("values.yaml"))
        self.assertEqual(schema.keys() - {"global"}, values.keys())
        modes = {values["steering"] for values, *_ in CASES.values() if "steering" in values}
        self.assertEqual({"none", *modes}, set(schema["steering"]["enum"]))

    def test_the_schema_wants_what_would_be_nothing(self):
        """The schema rejects an empty image name or tag, and null for required values."""
        schema = json.loads(chart_file("values.schema.json"))
        image = schema["properties"]["image"]
        self.assertEqual(["image", "steering"], schema["required"])
        self.assertEqual(image["properties"].keys(), {*image["required"]})
        self.assertEqual({1}, {each["minLength"] for each in image["properties"].values()})

    def test_versions_agree(self):
        """Chart, image and package have the same version."""
        chart = yaml.safe_load(chart_file("Chart.yaml"))
        tag = yaml.safe_load(chart_file("values.yaml"))["image"]["tag"]
        for version in (chart["version"], chart["appVersion"], tag):
            self.assertEqual(yurttunnel.__version__, version)


def _patch(op, place, value):
    path = f"/spec/template/spec/containers/0/{place}"
    return {
        "target": {"kind": "Deployment", "name": "yurt-tunnel-server"},
        "patch": json.dumps([{"op": op, "path": path, "value": value}]),
    }


class TemplatesTests(unittest.SynchronousTestCase):
    """The template evaluator behaves like Go's template language."""

    def test_language(self):
        """Blocks, variables, ranges, operands and white space are supported."""
        for text, expected in (
            ("a {{- 1 -}} b", "a1b"),
            ("{{- /* a comment */}}x", "x"),
            ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
            ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}", "1"),
            ("{{ if .no }}a{{ else if .yes }}b{{ else }}c{{ end }}", "b"),
            ("{{ range $k, $v := .map }}{{ $k }}={{ $v }};{{ end }}", "a=1;b=2;"),
            ("{{ range .list }}{{ . }}{{ $.yes }}{{ end }}", "7True8True"),
            ("{{ with .map }}{{ .b }}{{ end }}", "2"),
            ('{{ or .no "x" }}{{ and .no (index .list 9) }}', "xFalse"),
            ('{{ printf "%s %q %v" "a" "b" 3 }}', 'a "b" 3'),
            ('{{ define "t" }}<{{ . }}>{{ end }}{{ include "t" (index .list 1) }}', "<8>"),
        ):
            data = {"yes": True, "no": False, "map": {"b": 2, "a": 1}, "list": [7, 8]}
            self.assertEqual(expected, Templates().render(text, data), text)

    def test_unknown_values_are_errors(self):
        """An unsupported function or operator is an error."""
        self.assertRaises(KeyError, Templates().render, "{{ upper .x }}", {})
        self.assertRaises(ValueError, Templates().render, "{{ .x | quote }}", {})


class HelmTests(unittest.SynchronousTestCase):
    """Helm, if it is on PATH, renders the same output as the evaluator."""

    skip = why_not_by_helm()

    maxDiff = None

    def test_lint(self):
        """helm lint reports no problems."""
        done = subprocess.run(
            ["helm", "lint", "--strict", str(DEPLOY)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(0, done.returncode, done.stdout)

    def test_it_makes_the_same(self):
        """Helm renders the same for each kind of steering and each strategic merge patch."""
        directory = Path(self.mktemp())
        directory.mkdir()
        for name, (values, *_) in CASES.items():
            with self.subTest(name):
                by_helm = by_key(rendered_by_helm(directory, "mine", **values))
                self.assertEqual(by_key(rendered("mine", **values)), by_helm)
        for kind, name, merge in MERGES:
            patches = [{"target": {"kind": kind, "name": name}, "patch": merge}]
            with self.subTest(merge):
                by_helm = by_key(rendered_by_helm(directory, patches=patches))
                self.assertEqual(by_key(rendered(patches=patches)), by_helm)

    def test_a_value_that_does_not_exist(self):
        """Helm rejects unknown and empty values by the schema."""
        directory = Path(self.mktemp())
        directory.mkdir()
        for word, values in (
            ("passthrough", {"passthrough": True}),
            ("tag", {"image": {"tag": ""}}),
            ("steering", {"steering": None}),
        ):
            error = self.assertRaises(AssertionError, rendered_by_helm, directory, **values)
            self.assertIn(word, str(error))
