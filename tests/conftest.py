"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine must not fail a property; pytest-timeout stops one that hangs.
settings.register_profile("muster", deadline=None)
settings.load_profile("muster")
