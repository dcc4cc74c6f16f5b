"""The benchmark of the hub, compared with nginx as an HTTP proxy. See docs/performance.md."""
