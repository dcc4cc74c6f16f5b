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


def work(api: client.CoreV1Api, pod: str, numbers: Iterator[int], failed: list[str]) -> None:
    """Have the pod say one number after the other."""
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
            # An ``ApiException`` has what went wrong only in its text.
            failed.append(f"{number}: {error!r} {error}")
            return
        if said != f"number {number}\n":
            failed.append(f"{number}: {said!r}")


def main(kubeconfig: str, pod: str, count: str, workers: str) -> int:
    """Run ``count`` commands by ``workers`` threads."""
    failed: list[str] = []
    numbers = iter(range(int(count)))
    # A client for each, since a stream changes how a client asks. They are made one after another:
    # what one reads of the file's certificates is taken by the others from a temporary file that is
    # known by its name before its content is written (``kubernetes.config.kube_config``).
    clients = [config.new_client_from_config(kubeconfig) for _ in range(int(workers))]
    threads = [
        Thread(target=work, args=(client.CoreV1Api(one), pod, numbers, failed)) for one in clients
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
