"""The tests; each of them is watched, whichever way it is run."""

from hypothesis import HealthCheck, settings

from tests.watchdog import watch

watch()

# How long an example takes is the machine's affair; what hangs is the watchdog's.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")
