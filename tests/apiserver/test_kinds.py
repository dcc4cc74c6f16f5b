"""The kinds beside those of the lab, as ``kubectl api-resources`` and ``kubectl get`` show them."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.kinds import FURTHER
from tests.yurtlab.api.test_kinds import KindContract


class KindTests(KindContract, SynchronousTestCase):
    """They are told as all kinds are."""

    kinds = FURTHER
    written = Path(__file__).with_name("kinds.txt")
