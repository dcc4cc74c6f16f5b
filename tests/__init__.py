"""The tests; each has a timeout however it is run, and garbage is collected between tests."""

from hypothesis import HealthCheck, settings
from twisted.trial import _synctest

from tests.garbage import collect_between_tests
from tests.watchdog import watch
from tests.workers import distribute

watch()
distribute()
collect_between_tests()

# So that each test sees warnings that were emitted before, trial sets an attribute of each module:
# with 2,500 modules that takes 4 ms per test. It changes a filter as well, which suffices since
# Python 3.4 (bpo-4180).
_synctest._setWarningRegistryToNone = lambda modules: None

# How long an example takes depends on the machine; the watchdog catches hanging tests.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
