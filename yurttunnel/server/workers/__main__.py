"""``python -m yurttunnel.server.workers``: a worker, started by ``twist yurttunnel-server``."""

from yurttunnel.server.workers.program import main

main()
