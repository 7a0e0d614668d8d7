"""What travels of a function and its arguments, what is only named, and what is said when something cannot."""

from __future__ import annotations

import functools
import os
import pickle
import site
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.api.pickling import carry, name_of, split_path
from muster.errors import UsageError

LOCK = threading.Lock()
HERE = os.path.dirname(__file__)
LIBRARY = os.path.dirname(os.__file__)


def in_this_module() -> None: ...


def uses_a_lock() -> bool:
    return LOCK.locked()


class Trainer:
    def __init__(self, lock: Any = None) -> None:
        self.lock = lock

    def fit(self) -> None: ...

    def __call__(self) -> None: ...


def nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (in_this_module, "in_this_module"),
        (nested(), "inner"),
        (lambda: 0, "lambda"),
        (functools.partial(functools.partial(in_this_module)), "in_this_module"),
        (Trainer().fit, "Trainer.fit"),
        (Trainer(), "Trainer"),
        (Trainer, "Trainer"),
    ],
)
def test_every_callable_has_a_name_for_sentences(function: Callable[..., Any], name: str):
    assert name_of(function) == name


def test_a_function_of_a_module_is_named_and_fits_any_python():
    call = carry(in_this_module, (1,), {}, cwd="/")
    assert call.name == f"{__name__}.in_this_module"
    assert call.python is None
    assert b"in_this_module" in call.data


@pytest.mark.parametrize("function", [nested(), lambda: 0], ids=["nested", "lambda"])
def test_code_that_is_in_no_module_is_sent_and_needs_this_python(function: Callable[..., Any]):
    assert carry(function, (), {}, cwd="/").python == sys.version_info[:2]


def test_an_argument_that_is_code_needs_this_python_too():
    assert carry(in_this_module, (lambda: 0,), {}, cwd="/").python == sys.version_info[:2]


def test_all_that_cloudpickle_consists_of_goes_along():
    head = pickle.loads(carry(in_this_module, (), {}, cwd="/").data)
    assert {"cloudpickle", "cloudpickle.cloudpickle"} <= set(head["modules"])
    assert all(head["modules"].values())


def test_a_module_below_the_working_directory_must_be_alike_everywhere():
    assert carry(in_this_module, (), {}, cwd=HERE).file == os.path.basename(__file__)
    assert carry(in_this_module, (), {}, cwd=os.path.dirname(HERE)).file == f"unit/{os.path.basename(__file__)}"


def test_a_module_elsewhere_and_one_that_is_installed_need_not(tmp_path: Path):
    assert carry(in_this_module, (), {}, cwd=str(tmp_path)).file == ""
    assert carry(pytest.fixture, (), {}, cwd=sys.prefix).file == ""
    assert carry(nested(), (), {}, cwd=HERE).file == ""


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "sentence"),
    [
        (nested(), (0, LOCK), {}, "args[1] (_thread.lock) cannot be pickled: cannot pickle '_thread.lock' object"),
        (nested(), (), {"k": LOCK}, "kwargs['k'] (_thread.lock) cannot be pickled"),
        (lambda: LOCK.locked(), (), {}, "lambda uses `LOCK` (_thread.lock), which cannot be pickled"),
        (Trainer(LOCK).fit, (), {}, "Trainer.fit uses `self` ("),
        (Trainer(LOCK), (), {}, "Trainer cannot be pickled: cannot pickle '_thread.lock' object"),
        (3, (), {}, "launch() needs a callable, got int"),
        (nested(), 3, {}, "args must be a tuple or a list, got int"),
        (nested(), "ab", {}, "args must be a tuple or a list, got str"),
    ],
)
def test_what_cannot_be_sent_is_named(function: Any, args: Any, kwargs: dict[str, Any], sentence: str):
    with pytest.raises(UsageError) as caught:
        carry(function, args, kwargs, cwd="/")
    assert caught.value.message.startswith(sentence)
    assert caught.value.hint


def test_a_named_function_may_use_what_cannot_be_pickled():
    assert carry(uses_a_lock, (), {}, cwd="/").python is None


def test_the_callers_folders_keep_their_place_before_and_after_the_interpreters(tmp_path: Path):
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    entries = [
        "",
        str(project / "src"),
        f"{LIBRARY}.zip".replace("python3.", "python3"),
        LIBRARY,
        f"{LIBRARY}/lib-dynload",
        site.getsitepackages()[0],
        str(tmp_path / "tools"),
        str(tmp_path / "gone"),
        "__editable__.thing.finder",
        str(tmp_path / "tools"),
    ]
    assert split_path(entries, str(project)) == ((".", "src"), (str(tmp_path / "tools"),))
