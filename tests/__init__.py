"""The tests; each of them is watched, whichever way it is run, and garbage is seldom looked for."""

from hypothesis import HealthCheck, settings

from tests.garbage import collect_seldom
from tests.watchdog import watch

watch()
collect_seldom()

# How long an example takes is the machine's affair; what hangs is the watchdog's.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
