"""The tests; each has a timeout however it is run, and garbage is collected between tests."""

from hypothesis import HealthCheck, settings

from tests.garbage import collect_between_tests
from tests.watchdog import watch

watch()
collect_between_tests()

# How long an example takes depends on the machine; the watchdog catches hanging tests.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
