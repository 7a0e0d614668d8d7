"""The cache of byte code for hosts where Python would compile torch at every start."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from muster.agent import byte_code


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of an installed package without byte code, for which Python writes none."""
    source = tmp_path / "site" / "installed_without.py"
    source.parent.mkdir()
    source.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(source.parent))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(byte_code, "folder", lambda: str(tmp_path / "cache"))
    yield source
    sys.modules.pop(source.stem, None)


def load(source: Path) -> ModuleType:
    """Import it as a new zygote does."""
    sys.modules.pop(source.stem, None)
    with byte_code.cached(f"{source.stem}.part"):
        return importlib.import_module(source.stem)


def cache_of(package: Path) -> list[Path]:
    return list((package.parent.parent / "cache").rglob("*.pyc"))


def test_the_second_import_reads_byte_code_that_the_first_one_wrote(package: Path):
    load(package)
    (cache,) = cache_of(package)
    stamp = package.stat()
    package.write_text("VALUE = 2\n")  # the same size and time: only the cache still has the old value
    os.utime(package, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load(package).VALUE == 1
    assert cache_of(package) == [cache]
    assert not (package.parent / "__pycache__").exists()


def test_a_changed_source_is_compiled_again(package: Path):
    load(package)
    package.write_text("VALUE = 1000\n")
    assert load(package).VALUE == 1000


def test_the_settings_of_the_interpreter_are_restored_even_after_an_error(package: Path):
    package.write_text("import sys\nSEEN = sys.pycache_prefix\nraise RuntimeError\n")
    with pytest.raises(RuntimeError):
        load(package)
    assert sys.pycache_prefix is None
    assert sys.dont_write_bytecode


def test_the_cache_is_not_used_where_python_writes_byte_code_itself(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    load(package)
    assert cache_of(package) == []
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it has byte code now
    load(package)
    assert cache_of(package) == []


def test_the_cache_is_not_used_for_a_module_that_does_not_exist(package: Path):
    with byte_code.cached("no_such_module_anywhere"):
        assert sys.pycache_prefix is None


def test_a_prefix_that_the_user_chose_stays(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "pycache_prefix", "/nonexistent/of/the/user")
    with byte_code.cached(package.stem):
        assert sys.pycache_prefix == "/nonexistent/of/the/user"
    assert not (package.parent.parent / "cache").exists()


@pytest.mark.parametrize("how", ["open to others", "of another user", "a link", "a file"])
def test_a_directory_that_others_could_write_to_is_not_used(
    package: Path, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    cache = tmp_path / "cache"
    if how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "elsewhere")
    elif how == "a file":
        cache.write_text("")
    else:
        cache.mkdir(mode=0o700)
    if how == "open to others":
        cache.chmod(0o770)
    if how == "of another user":
        monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert load(package).VALUE == 1
    assert not list(tmp_path.rglob("*.pyc"))


def test_the_directory_is_for_this_user_alone_with_any_umask(package: Path):
    for mask in (0, 0o777):
        before = os.umask(mask)
        try:
            load(package)
        finally:
            os.umask(before)
        assert (package.parent.parent / "cache").stat().st_mode & 0o777 == 0o700
