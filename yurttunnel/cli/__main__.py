"""``python -m yurttunnel.cli``: the same as ``yurttunnel``."""

from yurttunnel.cli.main import main

main()
