"""The entries for callers: each turns connections into calls, and answers in its own protocol.

``connect`` is HTTP CONNECT, ``forward`` plain ports, ``passthrough`` TLS that is not terminated.
``calls`` is what they share. ``kubelet`` accepts requests to kubelets and returns the responses.
"""
