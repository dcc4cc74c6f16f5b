"""Deployments, DaemonSets and other kinds of manifests, stored as by Kubernetes."""

from __future__ import annotations

from tests.apiserver.support import ApiTestCase
from tests.yurtlab.api.support import STRATEGIC

APPS = "/apis/apps/v1/namespaces/default"
DEPLOYMENTS = f"{APPS}/deployments"
DAEMON_SETS = f"{APPS}/daemonsets"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def workload(name="web", labels=None, **spec):
    """Return a workload."""
    labels = labels or {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    }
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template, **spec}
    return {"metadata": {"name": name}, "spec": spec}


class WorkloadTests(ApiTestCase):
    """Deployments and DaemonSets."""

    def refused(self, path=DEPLOYMENTS, method="POST", **fields):
        """Return the errors."""
        status, answer = self.call(method, path, workload(**fields))
        self.assertEqual((422, "Invalid"), (status, answer["reason"]), answer)
        return [f"{one['field']}: {one['message']}" for one in answer["details"]["causes"]]

    def test_deployment(self):
        """A Deployment gets the defaults of Kubernetes, and those of its pods, and no status."""
        made = self.create(workload(), DEPLOYMENTS)
        spec = made["spec"]
        self.assertEqual(
            (1, {}, 1), (spec["replicas"], made["status"], made["metadata"]["generation"])
        )
        rolling = {"maxUnavailable": "25%", "maxSurge": "25%"}
        self.assertEqual({"type": "RollingUpdate", "rollingUpdate": rolling}, spec["strategy"])
        self.assertEqual("Always", spec["template"]["spec"]["restartPolicy"])
        (container,) = spec["template"]["spec"]["containers"]
        self.assertEqual("IfNotPresent", container["imagePullPolicy"])

    def test_strategies(self):
        """A given update strategy is kept, and completed if it is the default one."""
        recreate = {"type": "Recreate"}
        made = self.create(workload("a", strategy=recreate), DEPLOYMENTS)
        self.assertEqual(recreate, made["spec"]["strategy"])
        rolling = {"rollingUpdate": {"maxUnavailable": 0}}
        made = self.create(workload("b", strategy=rolling), DEPLOYMENTS)
        self.assertEqual(
            {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"}},
            made["spec"]["strategy"],
        )

    def test_job(self):
        """A Job selects its pods by its name, whatever other labels they have."""
        made = self.create(workload("once"), "/apis/batch/v1/namespaces/default/jobs")
        spec, label = made["spec"], {"batch.kubernetes.io/job-name": "once"}
        self.assertEqual({"matchLabels": label}, spec["selector"])
        self.assertEqual({"app": "web", **label}, spec["template"]["metadata"]["labels"])

    def test_daemon_set(self):
        """A DaemonSet gets the defaults of Kubernetes."""
        spec = self.create(workload(), DAEMON_SETS)["spec"]
        rolling = {"maxUnavailable": 1, "maxSurge": 0}
        update = {"type": "RollingUpdate", "rollingUpdate": rolling}
        self.assertEqual((update, 10), (spec["updateStrategy"], spec["revisionHistoryLimit"]))

    def test_selector(self):
        """The selector must match the template's labels, and is immutable."""
        self.assertEqual(["spec.selector: Required value"], self.refused(selector=None))
        self.assertEqual(
            ["spec.selector: Invalid value: {}: empty selector is invalid for daemonset"],
            self.refused(DAEMON_SETS, selector={}),
        )
        self.assertEqual(
            [
                'spec.template.metadata.labels: Invalid value: {"app": "other"}: `selector` does'
                " not match template `labels`"
            ],
            self.refused(labels={"app": "other"}),
        )
        self.create(workload(), DEPLOYMENTS)
        other = {"matchLabels": {"tier": "x"}}
        self.assertEqual(
            ['spec.selector: Invalid value: {"matchLabels": {"tier": "x"}}: field is immutable'],
            self.refused(
                f"{DEPLOYMENTS}/web", "PUT", labels={"app": "web", "tier": "x"}, selector=other
            ),
        )

    def test_template(self):
        """The template is validated like a pod."""
        spec = {"containers": [{"name": "main"}], "restartPolicy": "Never"}
        template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
        self.assertEqual(
            [
                "spec.template.spec.containers[0].image: Required value",
                'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values:'
                ' "Always"',
            ],
            self.refused(template=template),
        )

    def test_changed(self):
        """A change of the template increments the generation."""
        self.create(workload(), DEPLOYMENTS)
        containers = [{"name": "main", "image": "web:2"}]
        patch = {"spec": {"template": {"spec": {"containers": containers}}}}
        _, answer = self.call("PATCH", f"{DEPLOYMENTS}/web", patch, media_type=STRATEGIC)
        self.assertEqual(2, answer["metadata"]["generation"])
        (container,) = answer["spec"]["template"]["spec"]["containers"]
        self.assertEqual("web:2", container["image"])


class StoredTests(ApiTestCase):
    """Kinds that are only stored."""

    def cells(self, path, body):
        """Create an object; return its table cells by column."""
        self.create(body, path)
        _, answer = self.call("GET", path, accept=TABLE)
        columns = [column["name"] for column in answer["columnDefinitions"]]
        return dict(zip(columns, answer["rows"][0]["cells"], strict=True))

    def test_endpoint_slice(self):
        """An EndpointSlice shows addresses and ports."""
        body = {
            "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "a", "port": 1}, {"name": "b"}],
            "endpoints": [{"addresses": [f"192.0.2.{number}"]} for number in range(5)],
        }
        shown = self.cells("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body)
        self.assertEqual("192.0.2.0,192.0.2.1,192.0.2.2 + 2 more...", shown["Endpoints"])
        self.assertEqual(("IPv4", "1,*"), (shown["AddressType"], shown["Ports"]))

    def test_budget(self):
        """A PodDisruptionBudget shows the number of allowed disruptions."""
        body = {"metadata": {"name": "a"}, "spec": {"maxUnavailable": 1}}
        shown = self.cells("/apis/policy/v1/namespaces/default/poddisruptionbudgets", body)
        self.assertEqual(
            ("N/A", "1", 0),
            (shown["Min Available"], shown["Max Unavailable"], shown["Allowed Disruptions"]),
        )

    def test_workloads(self):
        """Workloads show the desired number, and that no pods run."""
        shown = self.cells(DEPLOYMENTS, workload(replicas=2))
        self.assertEqual(("0/2", 0), (shown["Ready"], shown["Available"]))
        self.assertEqual(
            ("main", "web:1", "app=web"), (shown["Containers"], shown["Images"], shown["Selector"])
        )
        shown = self.cells(DAEMON_SETS, workload())
        self.assertEqual((0, "<none>"), (shown["Desired"], shown["Node Selector"]))

    def test_bindings(self):
        """Bindings show role and subjects."""
        body = {
            "metadata": {"name": "b"},
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [
                {"kind": "User", "name": "bob"},
                {"kind": "Group", "name": "team"},
                {"kind": "ServiceAccount", "name": "a", "namespace": "default"},
            ],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
        shown = self.cells(path, body)
        self.assertEqual(
            ("Role/r", "bob", "team", "default/a"),
            tuple(shown[name] for name in ("Role", "Users", "Groups", "ServiceAccounts")),
        )
        shown = self.cells(path.replace("bindings", "s"), {"metadata": {"name": "r"}})
        self.assertEqual("2025-06-15T15:06:40Z", shown["Created At"])
