"""The ways in for callers: each makes calls of what comes, and answers in its own words.

``connect`` is HTTP CONNECT, ``forward`` plain ports, ``passthrough`` TLS that is not terminated.
What they share is in ``calls``. ``kubelet`` takes requests for kubelets, and answers them.
"""
