"""Benchmarks of the tunnel's speed and cost: ``python -m benchmarks``, see docs/performance.md."""
