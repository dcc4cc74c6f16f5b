"""The kinds that the lab does not have, for ``kubectl api-resources`` and ``kubectl get``."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.kinds import FURTHER
from tests.yurtlab.api.test_kinds import KindContract


class KindTests(KindContract, SynchronousTestCase):
    """The contract of all kinds."""

    kinds = FURTHER
    written = Path(__file__).with_name("kinds.txt")
