"""Full and slow disks, and damaged files."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest

from tests.e2e.hub.clients import NodeClient, names
from tests.e2e.hub.cloud import Cloud
from tests.e2e.hub.node_requests import ALL_PODS, NODE_PATH
from tests.e2e.hub.programs import Hub
from tests.e2e.hub.support import NOTICED_SECONDS, HubTestCase
from tests.e2e.stopwatch import Stopwatch
from tests.e2e.support import which

SIZE = "1500k"
PAGE = 4096

SLOW_FSYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static int slowly(const char *name, int fd) {
    int (*real)(int) = (int (*)(int)) dlsym(RTLD_NEXT, name);
    if (access(SLOW_FILE, F_OK) == 0) sleep(1);
    return real(fd);
}
int fsync(int fd) { return slowly("fsync", fd); }
int fdatasync(int fd) { return slowly("fdatasync", fd); }
"""

RESPONSE_TIMEOUT = 0.5
"""The maximum seconds of a response of the cloud while each fsync takes a second."""


class FullDiskTests(HubTestCase):
    """The cache is on a disk of its own, which the test fills."""

    def own_disk(self) -> tuple[str, ...]:
        """Return the command prefix of a hub with a small disk for its cache."""
        if os.geteuid() != 0:
            raise SkipTest("only root can mount a disk")
        directory = os.path.join(self.directory, "H", "cache")
        mount = (
            f"mkdir -p -m 700 {directory} && mount -t tmpfs -o mode=0700,size={SIZE} t {directory}"
        )
        return (which("unshare"), "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")

    async def test_a_full_disk_costs_nothing_online_and_is_reported(self) -> None:
        """Lists and watches continue; readiness and metrics report it, until there is room."""
        cloud, hub = await self.start(prefix=self.own_disk())
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        await self.settled(hub)
        filler = Path(f"/proc/{hub.pid}/root{hub.cache}/filler")
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * PAGE)
            except OSError:
                file.flush()
        for number in range(200):
            cloud.add_pod(f"web-{number}", annotations={"text": "x" * 5000})
        for _ in range(3):
            self.assertEqual(len((await client.get(ALL_PODS))["items"]), 200)

        async def broken() -> bool:
            return await hub.metric("yurthub_cache_broken") == 1

        await self.eventually(broken, "the hub knows that its disk is full", 20)
        _, page = await hub.get("/readyz")
        self.assertRegex(page, r"disk is full|no room|full")
        filler.unlink()
        watch = await client.watch(ALL_PODS)

        async def is_usable() -> bool:
            await client.get(ALL_PODS)
            return await hub.metric("yurthub_cache_broken") == 0

        await self.eventually(is_usable, "the hub writes again", 60)
        self.assertFalse(watch.ended)


class SlowDiskTests(HubTestCase):
    """Each fsync takes a second."""

    def shim(self) -> tuple[str, ...]:
        """Return the command prefix of a hub whose fsync is slow while ``slow`` exists."""
        compiler = shutil.which("cc")
        if compiler is None:
            raise SkipTest("cc is not installed")
        source = Path(self.directory, "slow.c")
        self.slow = Path(self.directory, "slow")
        source.write_text(SLOW_FSYNC.replace("SLOW_FILE", f'"{self.slow}"'))
        library = Path(self.directory, "slow.so")
        os.spawnv(
            os.P_WAIT,
            compiler,
            [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"],
        )
        return (which("env"), f"LD_PRELOAD={library}")

    async def test_a_slow_disk_slows_no_answer(self) -> None:
        """Responses wait neither for the disk nor for each other."""
        cloud, hub = await self.start(prefix=self.shim())
        for number in range(50):
            cloud.add_pod(f"web-{number}")
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        self.slow.touch()
        times = []
        for number in range(50):
            cloud.change("pods", f"web-{number}", "default", labels={"n": str(number)})
            watch = Stopwatch(reactor)
            await client.get(ALL_PODS)
            times.append(watch.seconds())
        # One of them may be late on a busy machine; a second for each would be the disk's.
        self.assertLess(sorted(times)[45], RESPONSE_TIMEOUT, times)
        self.slow.unlink()
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        labels = {
            one["metadata"].get("labels", {}).get("n")
            for one in (await client.get(ALL_PODS))["items"]
        }
        self.assertEqual(len(labels), 50)


class DamageTests(HubTestCase):
    """A cache file that is no longer a database."""

    async def furnished(self) -> tuple[Cloud, Hub, Path]:
        """Start and stop a hub with cached data; return its cache file."""
        cloud, hub = await self.start()
        for number in range(100):
            cloud.add_pod(f"web-{number}", annotations={"text": "x" * 2000})
        await self.client(hub, "flanneld").get(ALL_PODS)
        await self.settled(hub)
        await hub.stop()
        found = sorted(Path(hub.cache).rglob("*"), key=lambda path: path.stat().st_size)
        return cloud, hub, found[-1]

    async def test_a_damaged_cache_is_moved_aside_and_recreated(self) -> None:
        """The hub starts, reports it, works online, and caches new data."""
        cloud, hub, path = await self.furnished()
        content = bytearray(path.read_bytes())
        content[: len(content) // 2] = os.urandom(len(content) // 2)
        path.write_bytes(content)
        hub.start()
        await hub.ready()
        await self.wait_for_state(hub, online=True)
        client = self.client(hub, "flanneld")
        self.assertEqual(len((await client.get(ALL_PODS))["items"]), 100)
        await self.client(hub).get(NODE_PATH)
        await self.settled(hub)
        self.assertIn("damaged", hub.log)
        await self.disconnect(cloud, hub)
        self.assertEqual(len(names(await client.get(ALL_PODS))), 100)

    async def test_a_cache_that_is_damaged_in_use(self) -> None:
        """Online responses continue, whatever the file contains."""
        cloud, hub, path = await self.furnished()
        hub.start()
        await hub.ready()
        await self.wait_for_state(hub, online=True)
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)
        with path.open("r+b") as file:
            file.write(os.urandom(path.stat().st_size))
        for number in range(100):
            cloud.change("pods", f"web-{number}", "default", labels={"n": str(number)})
            self.assertEqual(len((await client.get(ALL_PODS))["items"]), 100)
        self.assertTrue(hub.running)

    async def expect_list_after_410(self, hub: Hub, client: NodeClient, since: str) -> None:
        """Expect that a watch from a version gets 410 soon; list again, as a reflector does."""

        async def is_expired() -> bool:
            response = await (
                await client.send(f"{ALL_PODS}?watch=1&resourceVersion={since}")
            ).begun()
            return response.status == 410

        await self.eventually(is_expired, "the client lists again", NOTICED_SECONDS, 1.0)
        self.assertEqual(len((await client.get(ALL_PODS))["items"]), 100)
        await self.settled(hub)

    async def test_a_removed_cache_is_filled_again(self) -> None:
        """Clients with open watches list again, so the new file has their objects in an outage."""
        cloud, hub, _ = await self.furnished()
        hub.start()
        await hub.ready()
        await self.wait_for_state(hub, online=True)
        client = self.client(hub, "flanneld")
        since = (await client.get(ALL_PODS))["metadata"]["resourceVersion"]
        watch = await client.watch(ALL_PODS, resourceVersion=since)
        await self.settled(hub)
        shutil.rmtree(hub.cache)
        cloud.change("pods", "web-1", "default", labels={"n": "1"})
        await self.eventually(lambda: watch.ended, "the watch ends", NOTICED_SECONDS)
        await self.expect_list_after_410(hub, client, since)
        await self.disconnect(cloud, hub)
        self.assertEqual(len(names(await client.get(ALL_PODS))), 100)

    async def test_the_cache_of_another_version_is_filled_again(self) -> None:
        """After an upgrade a client that resumes its watch lists again."""
        cloud, hub, path = await self.furnished()
        since = str(cloud.store.version)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 1")
        connection.close()
        hub.start()
        await hub.ready()
        await self.wait_for_state(hub, online=True)
        client = self.client(hub, "flanneld")
        await self.expect_list_after_410(hub, client, since)
        await self.disconnect(cloud, hub)
        self.assertEqual(len(names(await client.get(ALL_PODS))), 100)

    async def test_the_files_are_for_the_owner_alone(self) -> None:
        """The cached data includes Secrets."""
        _, hub, _ = await self.furnished()
        for path in (Path(hub.cache), *Path(hub.cache).rglob("*")):
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)
