"""The nodes and pods of a large cluster, with all usual fields: 5 to 6 KB each."""

from __future__ import annotations

NODES = 1_000
PODS = 20_000
NAMESPACES = 50

_LABELS = "app.kubernetes.io/"
_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TIME = "2025-06-15T15:06:40Z"
_PODS_PER_CLASS = 20


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"edge-{number % NODES:04}.site-{number % 40:02}.example.com"


def node_address(number: int) -> str:
    """Return the address of a node."""
    return f"10.{64 + number % NODES // 250}.{number % 250}.10"


def pod_name(number: int) -> tuple[str, str]:
    """Return the namespace and the name of a pod."""
    return f"team-{number % NAMESPACES:02}", f"shop-{number // 20:05}-6d4b75cb6d-{number:05}"


def node(number: int) -> dict:
    """Return a node as its kubelet reports it."""
    name = node_name(number)
    conditions = {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    quantities = {
        "cpu": "4",
        "ephemeral-storage": "61255492Ki",
        "hugepages-2Mi": "0",
        "memory": "8039152Ki",
        "pods": "110",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            **_identity(name, "", number),
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "openyurt.io/is-edge-worker": "true",
                "apps.openyurt.io/nodepool": f"site-{number % 40:02}",
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": [_managed("kubelet", list(conditions) + list(quantities))],
        },
        "spec": {"podCIDR": f"10.244.{number % 250}.0/24"},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": node_address(number)},
                {"type": "Hostname", "address": name},
            ],
            "allocatable": quantities,
            "capacity": quantities,
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "lastHeartbeatTime": _TIME,
                    "lastTransitionTime": _TIME,
                    "reason": f"KubeletHas{kind}",
                    "message": f"kubelet tells that the condition {kind} is {status}",
                }
                for kind, status in conditions.items()
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [
                {
                    "names": [
                        f"registry.example.com/shop/part-{image}@sha256:{image:064x}",
                        f"registry.example.com/shop/part-{image}:1.{image}.0",
                    ],
                    "sizeBytes": 31_415_926 + image,
                }
                for image in range(16)
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": f"{number:032x}",
                "containerRuntimeVersion": "containerd://1.7.20",
                "kernelVersion": "6.1.0-25-amd64",
                "kubeletVersion": "v1.31.2",
                "machineID": f"{number:032x}",
                "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
            },
        },
    }


def pod(number: int) -> dict:
    """Return a pod of a Deployment that runs on a node, with two containers."""
    namespace, name = pod_name(number)
    parts = ("main", "proxy")
    labels = {
        f"{_LABELS}name": "shop",
        f"{_LABELS}instance": f"shop-{number // _PODS_PER_CLASS:05}",
        f"{_LABELS}version": "1.12.3",
        f"{_LABELS}managed-by": "Helm",
        "pod-template-hash": "6d4b75cb6d",
    }
    address = f"10.244.{number // 250 % 250}.{number % 250}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **_identity(name, namespace, number),
            "generateName": f"{name[:-5]}",
            "labels": labels,
            "annotations": {"checksum/config": f"{number:064x}", "prometheus.io/scrape": "true"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": name[:-6],
                    "uid": f"{number // _PODS_PER_CLASS:036x}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_managed("kube-controller-manager", [*labels, *parts])],
        },
        "spec": {
            "containers": [_container(part, number) for part in parts],
            "dnsPolicy": "ClusterFirst",
            "nodeName": node_name(number),
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "shop",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                for key in ("not-ready", "unreachable")
            ],
            "volumes": [{"name": "config", "configMap": {"name": "shop", "defaultMode": 420}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": _TIME}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": part,
                    "ready": True,
                    "restartCount": 0,
                    "image": f"registry.example.com/shop/{part}:1.12.3",
                    "imageID": f"registry.example.com/shop/{part}@sha256:{number:064x}",
                    "containerID": f"containerd://{number:064x}",
                    "state": {"running": {"startedAt": _TIME}},
                }
                for part in parts
            ],
            "hostIP": node_address(number),
            "podIP": address,
            "podIPs": [{"ip": address}],
            "qosClass": "Burstable",
            "startTime": _TIME,
        },
    }


def _identity(name: str, namespace: str, number: int) -> dict:
    identity = {
        "name": name,
        "uid": f"{number:036x}",
        "resourceVersion": str(1_000_000 + number),
        "creationTimestamp": _TIME,
    }
    return {**identity, "namespace": namespace} if namespace else identity


def _managed(manager: str, fields: list[str]) -> dict:
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _TIME,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, **{f"f:{one}": {} for one in fields}}}},
    }


def _container(name: str, number: int) -> dict:
    probe = {
        "httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
        "periodSeconds": 10,
        "timeoutSeconds": 1,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    return {
        "name": name,
        "image": f"registry.example.com/shop/{name}:1.12.3",
        "imagePullPolicy": "IfNotPresent",
        "args": ["--config=/etc/shop/config.yaml", f"--instance={number}"],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": f"SHOP_SETTING_{one}", "value": f"value {one}"} for one in range(8)),
        ],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "resources": {
            "limits": {"memory": "256Mi"},
            "requests": {"cpu": "50m", "memory": "128Mi"},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/shop", "readOnly": True},
            {"name": "token", "mountPath": _MOUNT, "readOnly": True},
        ],
    }
