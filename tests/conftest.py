"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine must not fail a property; pytest-timeout stops one that hangs.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")
