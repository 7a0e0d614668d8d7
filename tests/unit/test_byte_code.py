"""The cache of byte code for hosts where Python would compile torch at every start."""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from muster.agent import byte_code

NAME = "installed_without"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of an installed package without byte code, for which Python writes none."""
    source = tmp_path / "site" / NAME / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(byte_code, "PACKAGE", NAME)
    monkeypatch.setattr(byte_code, "folder", lambda: str(tmp_path / "cache"))
    yield source
    sys.modules.pop(NAME, None)


def load(source: Path) -> ModuleType:
    """Import it as a new zygote does."""
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()
    with byte_code.Cached(f"{NAME}.part"):
        return importlib.import_module(NAME)


def cache_of(package: Path) -> list[Path]:
    return list((package.parents[2] / "cache").rglob("*.pyc"))


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


@pytest.mark.parametrize("other", ["another version beside it", "another commit of it"])
def test_sources_of_another_installation_with_the_same_path_size_and_time_are_compiled(package: Path, other: str):
    version = package.with_name("version.py")
    version.write_text("git_version = 'a'\n")
    load(package)
    stamp = package.stat()
    package.write_text("VALUE = 2\n")
    os.utime(package, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load(package).VALUE == 1  # which is what size and time are not enough for
    if other == "another commit of it":
        version.write_text("git_version = 'b'\n")
    else:
        (package.parents[1] / "numpy-2.4.0.dist-info").mkdir()
    assert load(package).VALUE == 2


def test_modules_of_the_user_are_not_cached(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(byte_code, "PACKAGE", "torch")
    load(package)
    assert cache_of(package) == []


def test_modules_that_a_later_job_imports_are_cached_too(package: Path):
    load(package)
    with byte_code.Cached(f"{NAME}.other"):  # the package is in sys.modules now
        assert sys.pycache_prefix is not None


def test_truncated_byte_code_fails_one_import_only(package: Path):
    load(package)
    (cache,) = cache_of(package)
    cache.write_bytes(cache.read_bytes()[:-8])  # as a full disk leaves it
    with pytest.raises(EOFError):
        load(package)
    assert load(package).VALUE == 1


def test_a_quota_that_truncates_byte_code_fails_no_import(package: Path):
    package.write_text("VALUE = 1\n" + "".join(f"NAME_{number} = 'x{number}'\n" for number in range(500)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        for _ in range(3):
            assert load(package).VALUE == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert cache_of(package) == []


def test_the_cache_is_not_used_on_a_disk_that_is_nearly_full(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(byte_code, "_FREE", 1 << 80)
    assert load(package).VALUE == 1
    assert cache_of(package) == []


def test_the_cache_keeps_the_installations_that_were_used_last(package: Path, tmp_path: Path):
    for number in range(byte_code._INSTALLATIONS + 2):
        (package.parents[1] / f"other-{number}.dist-info").mkdir()
        load(package)
        for age, cache in enumerate(sorted((tmp_path / "cache").iterdir(), key=lambda path: -path.stat().st_mtime)):
            os.utime(cache, (0, 1000 - 10 * age))
    assert len(cache_of(package)) == byte_code._INSTALLATIONS
    load(package)
    assert len(cache_of(package)) == byte_code._INSTALLATIONS


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


def test_the_cache_is_not_used_for_a_module_that_does_not_exist(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(byte_code, "PACKAGE", "no_such_module_anywhere")
    with byte_code.Cached("no_such_module_anywhere"):
        assert sys.pycache_prefix is None


def test_a_prefix_that_the_user_chose_stays(package: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "pycache_prefix", "/nonexistent/of/the/user")
    with byte_code.Cached(NAME):
        assert sys.pycache_prefix == "/nonexistent/of/the/user"
    assert not (package.parents[2] / "cache").exists()


@pytest.mark.parametrize("how", ["open to others", "of another user", "a link", "a file", "replaceable"])
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
    if how == "replaceable":
        tmp_path.chmod(0o777)  # without the sticky bit, others may rename the directory
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
        assert (package.parents[2] / "cache").stat().st_mode & 0o777 == 0o700
