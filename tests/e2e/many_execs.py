"""Many commands in a pod, from one process: ``many_execs.py KUBECONFIG POD COUNT WORKERS``.

The client of the ``kubernetes`` package starts a command in milliseconds, while kubectl needs 0.1 s
of processor time. It uses WebSocket. Failures are printed, and determine the exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread

from kubernetes import client, config
from kubernetes.stream import stream


def work(api: client.CoreV1Api, pod: str, numbers: Iterator[int], failed: list[str]) -> None:
    """Let the pod print one number after the other."""
    for number in numbers:
        try:
            output = stream(
                api.connect_get_namespaced_pod_exec,
                *(pod, "default"),
                command=["echo", f"number {number}"],
                stdout=True,
                stderr=True,
            )
        except Exception as error:
            # An ``ApiException`` has the reason only in its text.
            failed.append(f"{number}: {error!r} {error}")
            return
        if output != f"number {number}\n":
            failed.append(f"{number}: {output!r}")


def main(kubeconfig: str, pod: str, count: str, workers: str) -> int:
    """Run ``count`` commands by ``workers`` threads."""
    failed: list[str] = []
    numbers = iter(range(int(count)))
    # Each thread has its own client, because a stream changes its client's request function.
    # Clients are created sequentially: they share temporary files of the certificates, whose
    # names are known before their content is written (``kubernetes.config.kube_config``).
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
