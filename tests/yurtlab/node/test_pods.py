"""Pods: the order of containers, their status in the API, and termination."""

from __future__ import annotations

import base64
import os

from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import TestCase

from tests.waiting import until
from tests.yurtlab.node.support import PYTHON, World, container, is_running
from yurtlab.api.errors import ApiError
from yurtlab.api.resources import CONFIG_MAPS, EVENTS, PODS, SECRETS
from yurtlab.node.containers import NO_COMMAND
from yurtlab.node.leftovers import marked_processes, running


def conditions(status):
    """Return the conditions and their values."""
    return {one["type"]: one["status"] for one in status["conditions"]}


def log(pod, name=""):
    """Return the output of a container."""
    found = pod.find(name).log
    return b"".join(line[40:] + b"\n" for line in found.segments[-1].path.read_bytes().splitlines())


class RunTests(TestCase):
    """Pods that run."""

    def setUp(self):
        """Create the world."""
        self.world = World(self)

    async def test_running(self):
        """A pod whose process runs is Running and Ready, with its start time and address."""
        self.world.reactor.advance(1_700_000_000)
        self.world.pod(container("sleep 1000"))
        status = await self.world.until_phase("Running")
        self.assertEqual(
            conditions(status),
            dict.fromkeys(
                (
                    "PodReadyToStartContainers",
                    "Initialized",
                    "Ready",
                    "ContainersReady",
                    "PodScheduled",
                ),
                "True",
            ),
        )
        self.assertEqual((status["podIP"], status["hostIP"]), ("192.0.2.7", "192.0.2.7"))
        self.assertEqual(status["startTime"], "2023-11-14T22:13:20Z")
        self.assertEqual(status["qosClass"], "BestEffort")
        (found,) = status["containerStatuses"]
        self.assertEqual(found["state"], {"running": {"startedAt": "2023-11-14T22:13:20Z"}})
        self.assertTrue(found["ready"] and found["started"])
        self.assertEqual((found["image"], found["restartCount"]), ("none", 0))
        pid = int(found["containerID"].removeprefix("process://"))
        self.assertTrue(is_running(pid))

    async def test_completed(self):
        """A pod whose process exits with 0 is Succeeded, with all details."""
        self.world.pod(container("echo done"), restartPolicy="Never")
        status = await self.world.until_phase("Succeeded")
        end = status["containerStatuses"][0]["state"]["terminated"]
        self.assertEqual((end["exitCode"], end["reason"]), (0, "Completed"))
        self.assertEqual(conditions(status)["Ready"], "False")
        ready = next(one for one in status["conditions"] if one["type"] == "Ready")
        self.assertEqual(ready["reason"], "PodCompleted")

    async def test_failed(self):
        """A pod whose process fails and must not be restarted is Failed."""
        self.world.pod(container("exit 3"), restartPolicy="Never")
        status = await self.world.until_phase("Failed")
        end = status["containerStatuses"][0]["state"]["terminated"]
        self.assertEqual((end["exitCode"], end["reason"]), (3, "Error"))

    async def test_killed(self):
        """The status of a killed container has the signal."""
        self.world.pod(container("kill -9 $$$$"), restartPolicy="Never")  # $$ is $ in a command
        status = await self.world.until_phase("Failed")
        end = status["containerStatuses"][0]["state"]["terminated"]
        self.assertEqual((end["exitCode"], end["signal"]), (137, 9))

    async def test_several(self):
        """All containers are started in order."""
        pod = self.world.pod(
            container("sleep 1000", "a"), container("sleep 1000", "b"), container("exit 1", "c"),
            restartPolicy="Never",
        )  # fmt: skip
        await self.world.until_state("terminated", index=2)
        status = await self.world.until_phase("Running")
        self.assertEqual([one["name"] for one in status["containerStatuses"]], ["a", "b", "c"])
        self.assertEqual(conditions(status)["Ready"], "False")
        self.assertIn(
            "[c]", next(o for o in status["conditions"] if o["type"] == "Ready")["message"]
        )
        self.assertIs(pod.find(""), pod.find("a"))
        self.assertIsNone(pod.find("d"))

    async def test_environment(self):
        """A process has the environment of its specification and of the pod."""
        names = ("NAME", "POD", "NODE", "IP", "APP", "HOSTNAME", "KEPT")
        pod = self.world.pod(
            container(
                " && ".join(f"echo {name}=${name}" for name in names)
                + "; pwd; echo $HOME; echo $1",
                env=[
                    {"name": "NAME", "value": "web"},
                    {"name": "KEPT", "value": "$(NAME)-$$(NAME)-$(OTHER)"},
                    *(
                        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                        for name, path in {
                            "POD": "metadata.namespace",
                            "NODE": "spec.nodeName",
                            "IP": "status.podIP",
                            "APP": "metadata.labels['app']",
                        }.items()
                    ),
                ],
                args=["sh", "$(NAME).$(IP)"],
            ),
            restartPolicy="Never",
        )
        await self.world.until_phase("Succeeded")
        lines = log(pod).decode().splitlines()
        self.assertEqual(
            lines[:7],
            [
                "NAME=web",
                "POD=default",
                "NODE=edge-1",
                "IP=192.0.2.7",
                "APP=web",
                "HOSTNAME=web",
                "KEPT=web-$(NAME)-$(OTHER)",
            ],
        )
        self.assertEqual(lines[7], lines[8])
        self.assertIn(pod.uid, lines[7])
        self.assertEqual(lines[9], "web.192.0.2.7")

    async def test_configuration(self):
        """Values come from ConfigMaps and Secrets, single ones or all."""
        self.world.store.create(
            CONFIG_MAPS, "default", {"metadata": {"name": "c"}, "data": {"KEY": "value", "B": "b"}}
        )
        secret = base64.b64encode(b"hidden").decode()
        self.world.store.create(
            SECRETS, "default", {"metadata": {"name": "s"}, "data": {"KEY": secret}}
        )
        pod = self.world.pod(
            container(
                "echo $ONE $TWO $P_B $NONE.",
                env=[
                    {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "KEY"}}},
                    {"name": "TWO", "valueFrom": {"secretKeyRef": {"name": "s", "key": "KEY"}}},
                    {
                        "name": "NONE",
                        "valueFrom": {
                            "configMapKeyRef": {"name": "x", "key": "KEY", "optional": True}
                        },
                    },
                ],
                envFrom=[
                    {"prefix": "P_", "configMapRef": {"name": "c"}},
                    {"secretRef": {"name": "none", "optional": True}},
                ],
            ),
            restartPolicy="Never",
        )
        await self.world.until_phase("Succeeded")
        self.assertEqual(log(pod), b"value hidden b .\n")

    async def test_configuration_later(self):
        """A container waits for a missing ConfigMap, whose name is in the status."""
        self.world.pod(container("sleep 1000", envFrom=[{"configMapRef": {"name": "late"}}]))
        waiting = await self.world.until_state("waiting")
        self.assertEqual(
            waiting,
            {"reason": "CreateContainerConfigError", "message": 'configmap "late" not found'},
        )
        self.assertEqual(self.world.status()["phase"], "Pending")
        self.world.store.create(
            CONFIG_MAPS, "default", {"metadata": {"name": "late"}, "data": {"A": "b"}}
        )
        self.world.reactor.advance(10)
        status = await self.world.until_phase("Running")
        self.assertEqual(status["containerStatuses"][0]["restartCount"], 0)

    async def test_no_command(self):
        """An image without a command is rejected; the message says what to do."""
        self.world.pod(container())
        waiting = await self.world.until_state("waiting")
        self.assertEqual(waiting, {"reason": "CreateContainerConfigError", "message": NO_COMMAND})

    async def test_volumes(self):
        """Mounts are not supported; the message says so."""
        self.world.pod(
            container("true", volumeMounts=[{"name": "v", "mountPath": "/data"}]),
            volumes=[{"name": "v", "emptyDir": {}}],
        )
        waiting = await self.world.until_state("waiting")
        self.assertIn("/data", waiting["message"])

    async def test_unsupported(self):
        """Unsupported fields are rejected by name."""
        for number, (given, spec) in enumerate(
            (
                ({"livenessProbe": {"tcpSocket": {"port": 1}}}, {}),
                ({"readinessProbe": {"tcpSocket": {"port": 1}}}, {}),
                ({"startupProbe": {"tcpSocket": {"port": 1}}}, {}),
                ({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, {}),
                ({}, {"activeDeadlineSeconds": 60}),
            )
        ):
            name = f"p{number}"
            self.world.pod(container("true", **given), name=name, **spec)
            waiting = await self.world.until_state("waiting", name=name)
            self.assertEqual(waiting["reason"], "CreateContainerConfigError")
            self.assertIn(f"remove {next(iter({**given, **spec}))}", waiting["message"])

    async def test_user(self):
        """A container for another user is not run; the message says why."""
        other = os.getuid() + 1
        self.world.pod(container("true", securityContext={"runAsUser": other}))
        waiting = await self.world.until_state("waiting")
        self.assertIn(f"runAsUser: {other}", waiting["message"])
        self.world.pod(
            container("true", securityContext={"runAsUser": os.getuid()}),
            name="own",
            securityContext={"runAsUser": other},
            restartPolicy="Never",
        )
        await self.world.until_phase("Succeeded", "own")

    async def test_root(self):
        """A container that must not run as root is not run as root."""
        self.patch(os, "getuid", lambda: 0)
        self.world.pod(container("true"), securityContext={"runAsNonRoot": True})
        waiting = await self.world.until_state("waiting")
        self.assertIn("runAsNonRoot", waiting["message"])

    async def test_no_room(self):
        """If the log cannot be written, the container waits and is retried."""
        self.world.directory.mkdir()
        pod = self.world.pod(container("true"), start=False, restartPolicy="Never")
        place = self.world.directory / pod.uid
        place.write_text("in the way")
        pod.start()
        waiting = await self.world.until_state("waiting")
        self.assertIn("Not a directory", waiting["message"])
        place.unlink()
        self.world.reactor.advance(10)
        await self.world.until_phase("Succeeded")

    async def test_working_directory(self):
        """An existing working directory of the machine is used."""
        pod = self.world.pod(container("pwd", workingDir="/usr"), restartPolicy="Never")
        await self.world.until_phase("Succeeded")
        self.assertEqual(log(pod), b"/usr\n")

    async def test_not_found(self):
        """An unknown program fails the container with a runtime's message."""
        made = {"name": "main", "image": "none", "command": ["no-such"]}
        self.world.pod(made, restartPolicy="Never")
        status = await self.world.until_phase("Failed")
        end = status["containerStatuses"][0]["state"]["terminated"]
        self.assertEqual((end["exitCode"], end["reason"]), (128, "StartError"))
        self.assertIn("executable file not found in $PATH", end["message"])

    async def test_leftover_processes(self):
        """A container ends with its main process: remaining processes are killed."""
        script = (
            "setsid sleep 1000 & echo $!; (trap '' TERM HUP; sleep 1000) & echo $!;"
            " env -i sleep 1000 & echo $!"
        )
        pod = self.world.pod(container(script), restartPolicy="Never")
        await self.world.until_phase("Succeeded")
        pids = [int(line) for line in log(pod).split()]
        self.assertEqual(len(pids), 3)
        await until(lambda: not any(map(is_running, pids)), "they have ended")

    async def test_output_with_leftovers(self):
        """All output of a process is in its log when its end is reported."""
        pod = self.world.pod(
            container("head -c 200000 /dev/zero | tr '\\0' x; echo; echo end"),
            restartPolicy="Never",
        )
        await self.world.until_phase("Succeeded")
        self.assertTrue(pod.find("").log.ended)
        self.assertTrue(log(pod).endswith(b"end\n"))


class EventTests(TestCase):
    """Events, as ``kubectl describe`` shows them."""

    def setUp(self):
        """Make a world."""
        self.world = World(self)

    def events(self):
        """Return the reasons, messages and counts of all events."""
        return [
            (one["type"], one["reason"], one["message"], one["count"])
            for one in self.world.store.list(EVENTS, "default")
        ]

    async def test_life(self):
        """Start and stop of a container are events."""
        pod = self.world.pod(container("sleep 1000"))
        await self.world.until_phase("Running")
        pod.delete(1)
        self.assertCountEqual(
            self.events(),
            [
                ("Normal", "Started", "Started container main", 1),
                ("Normal", "Killing", "Stopping container main", 1),
            ],
        )
        event = self.world.store.list(EVENTS, "default")[0]
        self.assertEqual(
            event["involvedObject"],
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": "default",
                "name": "web",
                "uid": pod.uid,
                "fieldPath": "spec.containers{main}",
            },
        )
        self.assertEqual(event["source"], {"component": "kubelet", "host": "edge-1"})

    async def test_what_to_do(self):
        """What prevents a container from running is an event, counted when it repeats."""
        self.world.pod(container())
        await self.world.until_state("waiting")
        self.assertEqual(self.events(), [("Warning", "Failed", f"Error: {NO_COMMAND}", 1)])
        self.world.reactor.advance(10)
        self.assertEqual(self.events(), [("Warning", "Failed", f"Error: {NO_COMMAND}", 2)])
        (event,) = self.world.store.list(EVENTS, "default")
        self.assertEqual(event["firstTimestamp"], "1970-01-01T00:00:00Z")
        self.assertEqual(event["lastTimestamp"], "1970-01-01T00:00:10Z")
        self.world.store.remove(EVENTS, "default", event["metadata"]["name"])
        self.world.reactor.advance(10)
        self.assertEqual(self.events(), [("Warning", "Failed", f"Error: {NO_COMMAND}", 1)])

    async def test_failures(self):
        """So are programs that cannot be started, and backoff."""
        made = {"name": "main", "image": "none", "command": ["no-such"]}
        pod = self.world.pod(container("true"), initContainers=[made])
        await self.world.reactor.until(
            lambda: pod.init_containers[0].restarts == 1 and len(self.events()) == 2, "it waits"
        )
        name = f"web_default({pod.uid})"
        self.assertCountEqual(
            self.events(),
            [
                (
                    "Warning",
                    "Failed",
                    'Error: exec: "no-such": executable file not found in $PATH',
                    2,
                ),
                (
                    "Warning",
                    "BackOff",
                    f"Back-off restarting failed container main in pod {name}",
                    1,
                ),
            ],
        )
        event = self.world.store.list(EVENTS, "default")[0]
        self.assertEqual(event["involvedObject"]["fieldPath"], "spec.initContainers{main}")


class RestartTests(TestCase):
    """Restarts of containers."""

    def setUp(self):
        """Create the world."""
        self.world = World(self)

    async def test_always(self):
        """A process is restarted at once, then after 10 s, doubling up to 5 minutes."""
        pod = self.world.pod(container("exit 1"))
        delays = []
        for expected in (10, 20, 40, 80, 160, 300, 300):
            waiting = await self.world.until_state("waiting")
            self.assertEqual(waiting["reason"], "CrashLoopBackOff")
            words = {60: "1m0s", 80: "1m20s", 160: "2m40s", 300: "5m0s"}.get(expected)
            self.assertIn(f"back-off {words or f'{expected}s'} ", waiting["message"])
            delays.append(expected)
            restarts = self.world.status()["containerStatuses"][0]["restartCount"]
            self.assertEqual(restarts, len(delays))
            self.world.reactor.advance(expected - 0.1)
            self.assertEqual(pod.find("").restarts, restarts)
            self.world.reactor.advance(0.1)
            self.assertEqual(pod.find("").restarts, restarts + 1)
        status = self.world.status()
        self.assertEqual(status["phase"], "Running")
        (found,) = status["containerStatuses"]
        self.assertEqual(found["lastState"]["terminated"]["exitCode"], 1)

    async def test_message(self):
        """The message names the container and the pod, and has the delay."""
        pod = self.world.pod(container("exit 1"))
        waiting = await self.world.until_state("waiting")
        self.assertEqual(
            waiting["message"],
            f"back-off 10s restarting failed container=main pod=web_default({pod.uid})",
        )

    async def test_forgiven(self):
        """After ten minutes the backoff is reset."""
        pod = self.world.pod(container("read word || sleep 1000; exit 1", stdin=True))
        main = pod.find("")
        for restarts in range(1, 4):
            await self.world.until_state("running")
            self.world.reactor.advance(601)
            main._process.write(b"end\n")
            await self.world.reactor.until(
                lambda desired=restarts: main.restarts == desired, "it runs again"
            )

    async def test_on_failure(self):
        """With OnFailure an error is retried and success is final."""
        self.world.pod(
            container("test -e seen || { touch seen; exit 1; }"), restartPolicy="OnFailure"
        )
        status = await self.world.until_phase("Succeeded")
        self.assertEqual(status["containerStatuses"][0]["restartCount"], 1)

    async def test_previous_log(self):
        """The log of the previous run is kept, older ones are not."""
        pod = self.world.pod(container("echo words; exit 1"))
        await self.world.until_state("waiting")
        first = pod.find("").previous_log
        self.assertNotEqual(first.segments[0].path.read_bytes(), b"")
        second = pod.find("").log
        self.world.reactor.advance(10)
        await self.world.until_state("waiting")
        self.assertIs(pod.find("").previous_log, second)
        self.assertFalse(first.segments[0].path.exists())


class InitTests(TestCase):
    """Init containers."""

    def setUp(self):
        """Create the world."""
        self.world = World(self)

    async def test_sequence(self):
        """They run one after the other, before the main containers."""
        share = self.world.directory / "order"
        self.world.directory.mkdir()
        self.world.pod(
            container(f"echo main >> {share}; sleep 1000"),
            initContainers=[
                container(f"sleep 0.1; echo first >> {share}", "first"),
                container(f"echo second >> {share}", "second"),
            ],
        )
        status = await self.world.until_phase("Running")
        await until(lambda: share.read_text().count("\n") == 3, "all have written")
        self.assertEqual(share.read_text(), "first\nsecond\nmain\n")
        self.assertEqual([one["ready"] for one in status["initContainerStatuses"]], [True, True])

    async def test_pending(self):
        """While they run, the pod is pending and not initialized."""
        self.world.pod(container("true"), initContainers=[container("sleep 1000", "first")])
        await self.world.reactor.until(
            lambda: self.world.status()["initContainerStatuses"][0]["state"].get("running"),
            "the first runs",
        )
        status = self.world.status()
        self.assertEqual(status["phase"], "Pending")
        self.assertEqual(conditions(status)["Initialized"], "False")
        self.assertEqual(
            status["containerStatuses"][0]["state"],
            {"waiting": {"reason": "PodInitializing"}},
        )

    async def test_failure(self):
        """A failed one is retried, or fails the pod if nothing may be restarted."""
        self.world.pod(container("true"), initContainers=[container("exit 1", "first")])
        await self.world.reactor.until(
            lambda: "waiting" in self.world.status()["initContainerStatuses"][0]["state"],
            "it waits to be retried",
        )
        self.assertEqual(self.world.status()["phase"], "Pending")
        self.world.pod(
            container("true"),
            name="never",
            initContainers=[container("exit 1", "first")],
            restartPolicy="Never",
        )
        await self.world.until_phase("Failed", "never")

    async def test_sidecar(self):
        """Sidecars are not supported; the message says so."""
        self.world.pod(
            container("true"),
            initContainers=[container("sleep 1000", "side", restartPolicy="Always")],
        )
        waiting = await self.world.reactor.until(
            lambda: self.world.status()["initContainerStatuses"][0]["state"].get("waiting"),
            "it waits",
        )
        self.assertIn("no sidecars", waiting["message"])


class EndTests(TestCase):
    """Termination of pods."""

    def setUp(self):
        """Create the world."""
        self.world = World(self)

    def gone(self, name="web"):
        """Whether the pod is removed from the store."""
        try:
            self.world.store.get(PODS, "default", name)
        except ApiError as error:
            return error.status == 404
        return False

    def left(self, pod):
        """Return the processes of a pod."""
        return marked_processes(running(), f"{self.world.run}/{pod.uid}/")

    async def test_deleted(self):
        """A deleted pod is terminated by SIGTERM, then removed with all its files."""
        pod = self.world.pod(container("trap 'exit 0' TERM; echo up; sleep 1000 & wait"))
        await self.world.until_phase("Running")
        await self.world.reactor.until(lambda: log(pod), "it is ready")
        pod.delete(1000)
        await self.world.reactor.until(self.gone, "it is removed")
        self.assertEqual(self.left(pod), [])
        self.assertEqual(list(self.world.directory.iterdir()), [])
        self.assertEqual(self.world.removed, [pod])

    async def test_ignored_sigterm(self):
        """A pod that ignores SIGTERM is killed after its grace period, and exists until then."""
        pod = self.world.pod(container("trap '' TERM; echo up; while :; do sleep 1; done"))
        await self.world.until_phase("Running")
        await self.world.reactor.until(lambda: log(pod), "it is ready")
        pod.delete(5)
        self.world.reactor.advance(4.9)
        self.assertFalse(self.gone())
        pod.delete(30)
        self.world.reactor.advance(0.1)
        await self.world.reactor.until(self.gone, "it is removed")
        self.assertEqual(self.left(pod), [])

    async def test_in_a_hurry(self):
        """A second deletion can shorten the grace period."""
        pod = self.world.pod(container("trap '' TERM; echo up; while :; do sleep 1; done"))
        await self.world.reactor.until(lambda: pod.find("").log and log(pod), "it is ready")
        pod.delete(30)
        pod.delete(1)
        self.world.reactor.advance(1)
        await self.world.reactor.until(self.gone, "it is removed")

    async def test_not_restarted(self):
        """A terminating pod is not restarted, whatever its policy."""
        pod = self.world.pod(container("exit 1"))
        await self.world.until_state("waiting")
        pod.delete(30)
        await self.world.reactor.until(self.gone, "it is removed")
        self.assertEqual(self.world.reactor.getDelayedCalls(), [])

    async def test_removed_by_force(self):
        """A pod removed from the store by force is killed at once, without a warning."""
        pod = self.world.pod(container("trap '' TERM; echo up; sleep 1000"))
        await self.world.until_phase("Running")
        self.world.store.remove(PODS, "default", "web")
        with capturedLogs() as logged:
            pod.forget()
            await self.world.reactor.until(lambda: self.world.removed, "it has ended")
        self.assertEqual([each for each in logged if each["log_level"] is LogLevel.warn], [])
        self.assertEqual(self.left(pod), [])

    async def test_namesake(self):
        """A new pod with the same name is not affected."""
        pod = self.world.pod(container("sleep 1000"))
        await self.world.until_phase("Running")
        self.world.store.remove(PODS, "default", "web")
        self.world.pod(container("sleep 1000"), start=False)
        pod.delete(0)
        await self.world.reactor.until(lambda: self.world.removed, "it has ended")
        self.assertEqual(self.world.status(), {"phase": "Pending", "qosClass": "BestEffort"})

    async def test_never_begun(self):
        """A pod that is deleted before it started is removed, too."""
        pod = self.world.pod(container(PYTHON), start=False)
        pod.delete(30)
        await self.world.reactor.until(self.gone, "it is removed")

    async def test_stopped(self):
        """When the node stops, processes end and the pod stays in the store."""
        pod = self.world.pod(container("sleep 1000"))
        await self.world.until_phase("Running")
        stopped = pod.stop(1)
        await self.world.reactor.until(lambda: stopped.called, "it has ended")
        self.assertEqual(self.left(pod), [])
        self.assertFalse(self.gone())
        # Who starts the node again finds it as it was.
        self.assertEqual(self.world.status("web")["phase"], "Running")
