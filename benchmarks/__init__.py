"""How fast the tunnel is, and what it costs: ``python -m benchmarks``, see docs/performance.md."""
