"""Whether pods reach the hub, as filters that lead them to it have to know.

Pods that are led where nobody listens have lost the way that they had: what Kubernetes gives them
leads to the API wherever that is reached.
"""

from __future__ import annotations

from collections.abc import Callable


class Reach:
    """What is told by who listens for pods.

    Until then it is as ``expected``: a hub that is started anew is not to lead its pods away from
    it and back, since a kubelet may start containers anew for that.
    """

    def __init__(self, expected: bool) -> None:
        self.reached = expected
        self.on_changed: list[Callable[[], object]] = []
        """Who is told when it is otherwise than before."""

    def tell(self, reached: bool) -> None:
        """Take it that pods reach the hub now, or that they do not."""
        if reached != self.reached:
            self.reached = reached
            for callback in self.on_changed:
                callback()
