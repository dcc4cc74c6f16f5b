"""What operators see of a process, and how it behaves: meta pages, metrics, logs, draining."""
