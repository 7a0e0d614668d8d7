"""A rank's process groups: hooks around their creation, their store, and which ranks have joined.

Like torch_adapter.py, this uses private names of torch; `tests/lab/test_torch_adapter.py` tests them.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock

from . import kept_errors
from .torch_adapter import C10D

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Thread
    from types import ModuleType
    from typing import Any
    from weakref import ref

_RENDEZVOUS = "torch.distributed.rendezvous"
_JOINED = "muster/joined"
"""The store key with the number of members that have created the group."""

_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


class Hooks:
    """Hooks around the creation of a process group. They must not raise, because the script would see it."""

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.before = before
        """Called before the default group is created."""
        self.after = after
        """Called after it has been created."""
        self.master_port = os.environ.get("MASTER_PORT", "")
        """The port of the job's own store; a script may use a different one."""
        self.made = 0
        """Number of default groups that this process has created in the job's store."""
        self.has_met = False
        """Whether this process has looked for the other ranks: for a process group, or for RPC."""
        self._is_joining = self._is_at_jobs_store = False

    def install(self) -> None:
        """Install the hooks now, or when torch's c10d module is imported."""
        if C10D in sys.modules:
            # Also in modules that copied it by `from … import` in the zygote, such as torch's device_mesh.
            self.wrap([sys.modules[C10D], *sys.modules.values()])
        else:
            sys.meta_path.insert(0, OnImport(C10D, lambda module: self.wrap([module])))

    def wrap(self, modules: list[ModuleType]) -> None:
        """Wrap the functions of the first module in all of these modules that contain them."""
        names = vars(modules[0])
        if "init_process_group" in names:
            _replace(modules, "init_process_group", self._around_init(names["init_process_group"]))
        if "new_group" in names:
            _replace(modules, "new_group", self._around_new(names["new_group"]))
        rendezvous = sys.modules.get(_RENDEZVOUS)
        if rendezvous is not None and "_create_c10d_store" in vars(rendezvous):
            create = self._around_store(vars(rendezvous)["_create_c10d_store"])
            rendezvous.__dict__["_create_c10d_store"] = create

    def _around_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from functools import wraps

        @wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            self.has_met = True
            self.before()
            self._is_joining, self._is_at_jobs_store = True, False
            try:
                result = original(*args, **kwargs)
            finally:
                self._is_joining = False
            self.made += self._is_at_jobs_store
            _count_in()
            self.after()
            return result

        return init_process_group

    def _around_new(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from functools import wraps

        @wraps(original)
        def new_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            _count_in()
            return result

        return new_group

    def _around_store(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Adapt the job's own store, which outlives groups and ranks, to scripts that create several groups.

        - A script that re-creates its group must not see the keys of the first one, so each group has its own prefix.
        - On a port other than the job's there is no store yet: rank 0 opens one, as under plain python.
        """
        from functools import wraps

        @wraps(original)
        def create(hostname: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            self.has_met = True
            if os.environ.get(_AGENT_STORE) != str(True):
                return original(hostname, port, *args, **kwargs)
            if str(port) != self.master_port:
                os.environ[_AGENT_STORE] = str(False)
                try:
                    return original(hostname, port, *args, **kwargs)
                finally:
                    os.environ[_AGENT_STORE] = str(True)
            store = original(hostname, port, *args, **kwargs)
            self._is_at_jobs_store = True
            if not self.made or not self._is_joining:
                return store
            return vars(sys.modules["torch.distributed"])["PrefixStore"](f"muster/{self.made}", store)

        return create


def _replace(modules: list[ModuleType], name: str, wrapped: Callable[..., Any]) -> None:
    """Replace the function of the first module by its wrapper in all modules that contain it."""
    original = vars(modules[0])[name]
    for module in modules:
        try:
            names: dict[str, Any] = object.__getattribute__(module, "__dict__")  # vars() would load a lazy module
        except AttributeError:
            continue  # an object that is not a module
        if names.get(name) is original:
            names[name] = wrapped


class OnImport:
    """Finds one module through the other finders, and calls `then` with it once it is loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then
        self._is_done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module, once, also if the script has wrapped this finder."""
        if name != self.name or self._is_done:
            return None
        self._is_done = True
        # A new list, because a loop over the old one in another thread would skip the next finder.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self.then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# --- which ranks have joined --------------------------------------------------------------------------------------


def _groups() -> Iterator[tuple[Any, Any]]:
    """The open process groups of this process, each with its store."""
    world: Any = vars(sys.modules[C10D]).get("_world") if C10D in sys.modules else None
    for group, (backend, store) in list(getattr(world, "pg_map", {}).items()):
        if backend != "fake":
            yield group, store


_made: list[ref[Any]] = []
"""The groups that this process has created and that still exist."""

_joining: list[ref[Any]] = []
"""The groups that some members may still be creating; weak references, so they are not kept alive."""

_watch: list[Thread] = []
"""The thread that waits for these groups, while there are any."""

_lock = allocate_lock()
"""Protects `_joining` and `_watch`."""


def _count_in() -> None:
    """Announce to the other members, through the group's store, that this process has created its groups."""
    from weakref import ref

    try:
        _made[:] = [made for made in _made if made() is not None]
        known = [made() for made in _made]
        is_jobs = _is_of_ranks()
        for group, store in _groups():
            if not any(group is made for made in known):
                _made.append(ref(group))
                if is_jobs and store.add(_JOINED, 1) < group.size():
                    _wait_for(_made[-1])
    except Exception as error:  # the script's own store may not support counting
        kept_errors.keep("counting the members of a process group", error)


def _is_of_ranks() -> bool:
    """Whether the members of the default group are ranks of this job, not processes that the script started."""
    dist: Any = sys.modules[C10D]
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return str(dist.get_rank()) == rank and size.isdigit() and dist.get_world_size() <= int(size)


def _wait_for(group: ref[Any]) -> None:
    """Make the thread wait for all members of this group as well."""
    from threading import Thread

    with _lock:
        _joining.append(group)
        if not _watch:
            _watch.append(Thread(target=_wait_for_all, name="muster-joining", daemon=True))
            _watch[0].start()


def _wait_for_all() -> None:
    """Wait until all members of the groups in `_joining` have created them, or until that can no longer be known."""
    from time import sleep

    pause = 0.002
    while True:
        if not _is_complete(_joining[0]()):
            sleep(pause)
            pause = min(1.1 * pause, 2.0)  # a tenth of the time waited, to spare the store with a thousand ranks
            continue
        with _lock:
            _joining.pop(0)
            if not _joining:
                _watch.clear()
                return


def _is_complete(wanted: Any) -> bool:
    """Whether all members have created a group; also True if it is destroyed or its store is gone."""
    try:
        return all(store.add(_JOINED, 0) >= group.size() for group, store in _groups() if group is wanted)
    except Exception:
        return True


def have_all_joined(limit: float) -> bool:
    """Wait until every member of every group has created it, up to `limit` seconds; False if some have not.

    The thread queries the store, not the caller, because a thread of the script may hold the store's lock indefinitely.
    """
    for thread in list(_watch):
        thread.join(limit)
    return not any(thread.is_alive() for thread in _watch)


def are_alive() -> bool:
    """Whether a group exists, including one that the script has destroyed but still references, such as in a model."""
    return any(made() is not None for made in _made) or next(_groups(), None) is not None


def keep_alive() -> None:
    """Never destroy existing groups: the destructor of a gloo group waits for threads that may wait for the GIL."""
    import ctypes

    for group in [*(made() for made in _made), *(group for group, _ in _groups())]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def leave_file_stores() -> None:
    """Let the last rank remove the file of a `file://` store, as the store's destructor does, for the next run."""
    try:
        for group, store in _groups():
            while hasattr(store, "underlying_store"):
                store = store.underlying_store
            if type(store).__name__ == "FileStore" and store.add("muster/left", 1) == group.size():
                os.remove(store.path)
    except Exception:
        pass  # it is gone already
