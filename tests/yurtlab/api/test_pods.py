"""Pods: defaults, validation, updates, deletion and scheduling."""

from __future__ import annotations

from tests.yurtlab.api.support import PODS_PATH, STRATEGIC, ApiTestCase, node, pod
from yurtlab.api.resources import EVENTS, NODES, PODS

WEB = f"{PODS_PATH}/web"


class DefaultTests(ApiTestCase):
    """The defaults of a new pod."""

    def test_pod(self):
        """A new pod is pending, and has the defaults of Kubernetes."""
        made = self.create()
        self.assertEqual({"phase": "Pending", "qosClass": "BestEffort"}, made["status"])
        spec = made["spec"]
        self.assertEqual(
            ("Always", 30, "ClusterFirst", {}, True),
            (
                spec["restartPolicy"],
                spec["terminationGracePeriodSeconds"],
                spec["dnsPolicy"],
                spec["securityContext"],
                spec["enableServiceLinks"],
            ),
        )

    def test_containers(self):
        """Containers and their ports have the defaults of Kubernetes."""
        container = {
            "name": "a",
            "image": "x",
            "ports": [{"containerPort": 80}],
        }
        (made,) = self.create(pod(containers=[container]))["spec"]["containers"]
        self.assertEqual({}, made["resources"])
        self.assertEqual("/dev/termination-log", made["terminationMessagePath"])
        self.assertEqual([{"containerPort": 80, "protocol": "TCP"}], made["ports"])

    def test_pull_policy(self):
        """Images without a tag, or with latest, are always pulled."""
        for image, policy in (
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("host:5000/nginx", "Always"),
            ("nginx:1", "IfNotPresent"),
            ("nginx@sha256:0", "IfNotPresent"),
        ):
            body = pod("p" + str(len(self.names())), containers=[{"name": "a", "image": image}])
            made = self.create(body)
            self.assertEqual(policy, made["spec"]["containers"][0]["imagePullPolicy"], image)

    def test_quality_of_service(self):
        """The QoS class is derived from requests and limits."""
        full = {"cpu": "1", "memory": "1Gi"}
        for name, resources, expected in (
            ("a", {"limits": full}, "Guaranteed"),
            ("b", {"limits": full, "requests": {"cpu": "500m"}}, "Burstable"),
            ("c", {"requests": full}, "Burstable"),
            ("d", {}, "BestEffort"),
        ):
            container = {"name": "a", "image": "x", "resources": resources}
            made = self.create(pod(name, containers=[container]))
            self.assertEqual(expected, made["status"]["qosClass"])

    def test_status_of_the_client(self):
        """A status in a new pod is ignored."""
        made = self.create({**pod(), "status": {"phase": "Running"}})
        self.assertEqual("Pending", made["status"]["phase"])


class ValidationTests(ApiTestCase):
    """Validation of pods."""

    def refused(self, body, *fields):
        """Create a pod that is Invalid because of ``fields``, and return the message."""
        status, answer = self.call("POST", PODS_PATH, body)
        self.assertEqual((422, "Invalid"), (status, answer["reason"]), answer)
        self.assertEqual("Pod", answer["details"]["kind"])
        self.assertEqual(list(fields), [one["field"] for one in answer["details"]["causes"]])
        self.assertEqual([], self.names())
        return answer["message"]

    def test_nothing(self):
        """A pod without containers and without a name is rejected for both reasons."""
        message = self.refused({}, "metadata.name", "spec.containers")
        self.assertEqual(
            'Pod "" is invalid: [metadata.name: Required value: name or generateName is required,'
            " spec.containers: Required value]",
            message,
        )

    def test_container(self):
        """A container must have a name and an image."""
        message = self.refused(
            pod(containers=[{}]), "spec.containers[0].name", "spec.containers[0].image"
        )
        self.assertIn("spec.containers[0].image: Required value", message)

    def test_one_cause(self):
        """A single cause is shown without brackets."""
        message = self.refused(pod(containers=[{"name": "a"}]), "spec.containers[0].image")
        self.assertEqual('Pod "web" is invalid: spec.containers[0].image: Required value', message)

    def test_names(self):
        """Names of pods and containers follow their rules."""
        message = self.refused(pod("Web"), "metadata.name")
        self.assertIn("a lowercase RFC 1123 subdomain must consist of", message)
        self.refused(pod("a" * 254), "metadata.name")
        two = [{"name": "a.b", "image": "x"}, {"name": "c", "image": "x"}]
        message = self.refused(pod(containers=two), "spec.containers[0].name")
        self.assertIn("a lowercase RFC 1123 label must consist of", message)

    def test_labels(self):
        """Labels and annotations follow their rules."""
        body = pod()
        body["metadata"]["labels"] = {"a b": "x", "c": "y z", "/d": "e"}
        body["metadata"]["annotations"] = {"a b": "anything goes"}
        self.refused(body, *["metadata.labels"] * 3, "metadata.annotations")

    def test_duplicates(self):
        """Containers, init containers included, must have different names."""
        one = [{"name": "a", "image": "x"}]
        message = self.refused(pod(containers=one, initContainers=one), "spec.containers[0].name")
        self.assertIn('Duplicate value: "a"', message)

    def test_values(self):
        """Policies, protocols and numbers must be valid."""
        container = {
            "name": "a",
            "image": "x",
            "imagePullPolicy": "Sometimes",
            "ports": [{"containerPort": 0}, {"containerPort": 70000, "protocol": "FTP"}],
            "env": [{"value": "x"}],
            "volumeMounts": [{"name": "v"}, {"mountPath": "/"}],
        }
        spec = {"restartPolicy": "Maybe", "terminationGracePeriodSeconds": -1, "volumes": [{}]}
        path = "spec.containers[0]"
        message = self.refused(
            pod(containers=[container], **spec),
            f"{path}.imagePullPolicy",
            f"{path}.ports[0].containerPort",
            f"{path}.ports[1].containerPort",
            f"{path}.ports[1].protocol",
            f"{path}.env[0].name",
            f"{path}.volumeMounts[0].name",
            f"{path}.volumeMounts[0].mountPath",
            f"{path}.volumeMounts[1].name",
            "spec.volumes[0].name",
            "spec.restartPolicy",
            "spec.terminationGracePeriodSeconds",
        )
        self.assertIn(
            'spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always",'
            ' "OnFailure", "Never"',
            message,
        )


class ChangeTests(ApiTestCase):
    """Updates of pods."""

    def setUp(self):
        """Create a pod."""
        super().setUp()
        self.create(pod(tolerations=[{"key": "a"}]))

    def patch_spec(self, **spec):
        """Change the specification."""
        return self.call("PATCH", WEB, {"spec": spec}, media_type=STRATEGIC)

    def test_allowed(self):
        """Other images and more tolerations are allowed."""
        status, changed = self.patch_spec(
            containers=[{"name": "main", "image": "other"}],
            tolerations=[{"key": "a"}, {"key": "b"}],
        )
        self.assertEqual(200, status)
        self.assertEqual("other", changed["spec"]["containers"][0]["image"])
        self.assertEqual([{"key": "a"}, {"key": "b"}], changed["spec"]["tolerations"])

    def test_forbidden(self):
        """Anything else is Invalid, and nothing changes."""
        before = self.store.get(PODS, "default", "web")
        for spec in (
            {"hostname": "x"},
            {"containers": [{"name": "main", "command": ["sh"]}]},
            {"containers": [{"name": "second", "image": "x"}]},
            {"tolerations": []},
            {"activeDeadlineSeconds": 60},
            {"nodeName": "edge-2"},
        ):
            status, answer = self.patch_spec(**spec)
            self.assertEqual((422, "Invalid"), (status, answer["reason"]))
            self.assertIn("spec: Forbidden: pod updates may not change", answer["message"])
        self.assertEqual(before, self.store.get(PODS, "default", "web"))

    def test_labels_are_checked(self):
        """A change of labels is validated."""
        patch = {"metadata": {"labels": {"a": "b c"}}}
        status, answer = self.call("PATCH", WEB, patch, media_type=STRATEGIC)
        self.assertEqual((422, "Invalid"), (status, answer["reason"]))


class EndTests(ApiTestCase):
    """Deletion of pods."""

    def setUp(self):
        """Create a pod."""
        super().setUp()
        self.create()

    def test_graceful(self):
        """A pod on a node is marked as deleted, and removed when the node confirms it."""
        status, answer = self.call("DELETE", WEB)
        self.assertEqual((200, "Pod"), (status, answer["kind"]))
        self.assertEqual(30, answer["metadata"]["deletionGracePeriodSeconds"])
        self.assertEqual("2025-06-15T15:07:10Z", answer["metadata"]["deletionTimestamp"])
        self.assertEqual(["web"], self.names())
        self.store.remove(PODS, "default", "web")
        self.assertEqual([], self.names())

    def test_forced(self):
        """With a grace period of 0 a pod is removed at once."""
        self.call("DELETE", WEB, {"gracePeriodSeconds": 0})
        self.assertEqual([], self.names())

    def test_shorter(self):
        """The grace period can be shortened while the pod terminates, also by the query."""
        self.call("DELETE", WEB)
        _, answer = self.call("DELETE", f"{WEB}?gracePeriodSeconds=1")
        self.assertEqual(1, answer["metadata"]["deletionGracePeriodSeconds"])

    def test_negative(self):
        """A negative grace period is one second."""
        _, answer = self.call("DELETE", WEB, {"gracePeriodSeconds": -1})
        self.assertEqual(1, answer["metadata"]["deletionGracePeriodSeconds"])

    def test_completed(self):
        """A completed pod is removed at once."""
        self.store.update_status(PODS, "default", "web", {"phase": "Succeeded"})
        self.call("DELETE", WEB)
        self.assertEqual([], self.names())

    def test_not_scheduled(self):
        """An unscheduled pod is removed at once."""
        self.store.remove(NODES, None, "edge-1")
        self.create(pod("other"))
        self.call("DELETE", f"{PODS_PATH}/other")
        self.assertEqual(["web"], self.names())


class SchedulerTests(ApiTestCase):
    """Scheduling."""

    def node_of(self, name="web"):
        """Return the node of the pod, if it has one."""
        return self.store.get(PODS, "default", name)["spec"].get("nodeName")

    def test_at_once(self):
        """A new pod is bound to the node, and its status shows that."""
        self.create()
        self.assertEqual("edge-1", self.node_of())
        (condition,) = self.store.get(PODS, "default", "web")["status"]["conditions"]
        self.assertEqual(("PodScheduled", "True"), (condition["type"], condition["status"]))

    def test_later(self):
        """A pod waits for a node that fits."""
        self.store.remove(NODES, None, "edge-1")
        self.create()
        self.assertIsNone(self.node_of())
        self.store.create(NODES, None, node("edge-2", unschedulable=True))
        self.assertIsNone(self.node_of())
        self.store.replace(NODES, None, "edge-2", node("edge-2"))
        self.assertEqual("edge-2", self.node_of())

    def test_selector(self):
        """A pod is bound only to a node that matches its node selector."""
        self.create(pod(nodeSelector={"disk": "ssd"}))
        self.assertIsNone(self.node_of())
        other = node("edge-2")
        other["metadata"]["labels"] = {"disk": "ssd"}
        self.store.create(NODES, None, other)
        self.assertEqual("edge-2", self.node_of())

    def taint(self, **taint):
        """Set one taint of the node."""
        self.store.replace(NODES, None, "edge-1", node(taints=[taint]))

    def test_taints(self):
        """A pod is bound only to a node whose taints it tolerates."""
        key, no = {"key": "k"}, {"effect": "NoSchedule"}
        for number, (taint, toleration, accepted) in enumerate(
            (
                (key | no, None, False),
                (key | {"effect": "NoExecute"}, None, False),
                (key | {"effect": "PreferNoSchedule"}, None, True),
                (key | no, key, True),
                (key | no, {"key": "other"}, False),
                (key | no, {"operator": "Exists"}, True),
                (key | no, key | {"effect": "NoExecute"}, False),
                (key | no, key | no, True),
                (key | no | {"value": "v"}, key, False),
                (key | no | {"value": "v"}, key | {"value": "v", "operator": "Equal"}, True),
                (key | no | {"value": "v"}, key | {"operator": "Exists"}, True),
            )
        ):
            self.taint(**taint)
            self.create(pod(f"p{number}", tolerations=[toleration] if toleration else []))
            found = self.node_of(f"p{number}") is not None
            self.assertEqual(accepted, found, (taint, toleration))
            self.call("DELETE", f"{PODS_PATH}/p{number}", {"gracePeriodSeconds": 0})

    def events(self):
        """Return the events of pods without a node, oldest first."""
        events_in_order = sorted(
            self.store.list(EVENTS), key=lambda one: one["metadata"]["resourceVersion"]
        )
        return [one["message"] for one in events_in_order if one["reason"] == "FailedScheduling"]

    def test_why(self):
        """The reason why a pod cannot be scheduled is in its status and in one event."""
        self.store.replace(NODES, None, "edge-1", node(unschedulable=True))
        taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
        for name in ("edge-2", "edge-3"):
            self.store.create(NODES, None, node(name, taints=[taint]))
        self.create(pod(nodeSelector={"disk": "ssd"}))
        why = (
            "0/3 nodes are available: 1 node(s) were unschedulable,"
            " 2 node(s) had untolerated taint {k: v}."
        )
        (condition,) = self.store.get(PODS, "default", "web")["status"]["conditions"]
        found = (condition["status"], condition["reason"], condition["message"])
        self.assertEqual(("False", "Unschedulable", why), found)
        self.store.update_status(NODES, None, "edge-2", {"phase": "changed"})
        self.assertEqual([why], self.events())
        (event,) = self.store.list(EVENTS, "default")
        self.assertEqual("Warning", event["type"])
        self.assertEqual("default-scheduler", event["source"]["component"])
        self.assertEqual("web", event["involvedObject"]["name"])
        for name in ("edge-1", "edge-2", "edge-3"):
            self.store.replace(NODES, None, name, node(name))
        match = "node(s) didn't match Pod's node affinity/selector"
        self.assertEqual(f"0/3 nodes are available: 3 {match}.", self.events()[-1])

    def scheduled(self):
        """Return the reason of the condition PodScheduled, and its transition time."""
        (condition,) = self.store.get(PODS, "default", "web")["status"]["conditions"]
        return condition.get("message"), condition["lastTransitionTime"]

    def test_since_when(self):
        """The transition time does not change when only the reason changes."""
        self.store.remove(NODES, None, "edge-1")
        self.create()
        first, since = self.scheduled()
        self.clock.advance(5)
        self.store.create(NODES, None, node("edge-2", unschedulable=True))
        second, still = self.scheduled()
        self.assertNotEqual(first, second)
        self.assertEqual(since, still)
        self.clock.advance(5)
        self.store.replace(NODES, None, "edge-2", node("edge-2"))
        self.assertNotEqual(since, self.scheduled()[1])

    def test_no_node(self):
        """Without any node, that is the reason."""
        self.store.remove(NODES, None, "edge-1")
        self.create()
        self.assertEqual(["no nodes available to schedule pods"], self.events())
        self.store.create(NODES, None, node())
        (condition,) = self.store.get(PODS, "default", "web")["status"]["conditions"]
        self.assertEqual("True", condition["status"])
        self.assertNotIn("message", condition)

    def test_fewest(self):
        """Pods are spread over nodes."""
        self.store.create(NODES, None, node("edge-2"))
        for name in ("a", "b"):
            self.create(pod(name))
        self.assertEqual({"edge-1", "edge-2"}, {self.node_of("a"), self.node_of("b")})

    def test_chosen_by_the_client(self):
        """A pod may name its node itself."""
        self.create(pod(nodeName="elsewhere"))
        self.assertEqual("elsewhere", self.node_of())
