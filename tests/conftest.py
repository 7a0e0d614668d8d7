"""Settings shared by all tests."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("engine_promises", "recipes")  # checks that several files of tests share

# `make test &` in a script passes down an ignored SIGINT and SIGQUIT, nohup an ignored SIGHUP. Programs that the tests
# start would ignore them too (so does Muster, on purpose), and every test of Ctrl-C or of a closed terminal would fail.
# Python itself ignores SIGPIPE and SIGXFSZ, and subprocess restores those two.
for _number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])

# A configuration file of whoever runs the tests must not change what they see.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"

# A busy machine must not fail a property; pytest-timeout stops one that hangs.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")
