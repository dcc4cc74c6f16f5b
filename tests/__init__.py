"""The tests: each is watched, whichever way it is run, and garbage is looked for after it."""

from hypothesis import HealthCheck, settings

from tests.garbage import collect_between_tests
from tests.watchdog import watch

watch()
collect_between_tests()

# How long an example takes is the machine's affair; what hangs is the watchdog's.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
