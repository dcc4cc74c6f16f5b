"""Commands in a pod, in a process of its own: ``many_execs.py KUBECONFIG POD COUNT WORKERS``.

The client of the ``kubernetes`` package begins a command in milliseconds, where a kubectl needs a
tenth of a second of the processor. It uses WebSocket. What fails is told, and is the exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread

from kubernetes import client, config
from kubernetes.stream import stream


def work(kubeconfig: str, pod: str, numbers: Iterator[int], failed: list[str]) -> None:
    """Have the pod say one number after the other."""
    # Its own, since a stream changes how a client asks.
    api = client.CoreV1Api(config.new_client_from_config(kubeconfig))
    for number in numbers:
        try:
            said = stream(
                api.connect_get_namespaced_pod_exec,
                *(pod, "default"),
                command=["echo", f"number {number}"],
                stdout=True,
                stderr=True,
            )
        except Exception as error:
            failed.append(f"{number}: {error!r}")
            return
        if said != f"number {number}\n":
            failed.append(f"{number}: {said!r}")


def main(kubeconfig: str, pod: str, count: str, workers: str) -> int:
    """Run ``count`` commands by ``workers`` threads."""
    failed: list[str] = []
    numbers = iter(range(int(count)))
    threads = [
        Thread(target=work, args=(kubeconfig, pod, numbers, failed)) for _ in range(int(workers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if remaining := sum(1 for _ in numbers):
        failed.append(f"{remaining} were not begun")
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
