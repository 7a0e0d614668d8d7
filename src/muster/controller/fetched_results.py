"""Copies results back after a job with --sync: the files that --fetch names, over the agents' channels."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from muster.controller.agents import Agents
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.links.link import AgentLink
from muster.controller.result_paths import MOST_FILES, Copy, Found, copies, is_asked_for, is_safe, within_limits
from muster.errors import EXIT_MUSTER, HostError
from muster.job import Job
from muster.output.screen import Screen
from muster.shared.replies import ResultPart
from muster.text import count, names, printable, size_text

STALLED = 60.0
"""Seconds without a byte of a host after which its files are given up."""

_ROOM = 64 << 20
"""Bytes that stay free on this machine's disk."""

_MOST_LISTS = 1000
"""Lists of files that a host may send; an agent sends 200 files in each."""

_MOST_UNWANTED = 2000
"""Pieces of files that a host may send beyond what it has announced, about 750 MB."""


class FetchedResults:
    """The files that one job brings back."""

    def __init__(self, job: Job, screen: Screen) -> None:
        self._patterns = job.spec.fetch
        self._root = Path(job.spec.cwd)
        self._screen = screen
        self._task: asyncio.Task[None] | None = None
        self._hosts: list[str] = []
        self._size = self._done = 0
        self._copied: list[Copy] = []
        self._kept: list[str] = []
        """Files of this machine of which the previous version was kept."""
        self._problems: list[str] = []

    def progress(self) -> str:
        """How far it is."""
        return f"copying results: {size_text(self._done)} of {size_text(self._size)}"

    def interrupt(self) -> bool:
        """Stop copying, if it is under way."""
        if self._task is None or self._task.done():
            return False
        self._task.cancel()
        return True

    def add_to(self, verdict: Verdict) -> Verdict:
        """The end of the job, which failed if its ranks did not but not all results are here."""
        if not (verdict.ok and self._problems):
            return verdict
        sentence = f"all ranks ended with exit code 0, but not all results were copied: {self._problems[0]}"
        notes = (verdict.sentence, *verdict.notes) if verdict.sentence else verdict.notes
        return replace(verdict, exit_code=EXIT_MUSTER, sentence=sentence, notes=notes)

    def sources(self, agents: Agents, *, is_elastic: bool) -> Sequence[AgentLink]:
        """The hosts whose results are copied: if the job can do without some, not those that are lost."""
        if not (is_elastic and self._patterns):
            return agents.leaders
        lost = [link.name for link in agents.leaders if link not in agents.usable]
        if lost:
            self._screen.warning(f"--fetch: lost {names(lost)}; no results were copied from there")
        return agents.usable

    async def copy(self, links: Sequence[AgentLink]) -> None:
        """Bring the files here, from all hosts side by side; what does not work is reported, never raised."""
        if not self._patterns:
            return
        self._hosts = [link.name for link in links]
        self._task = asyncio.ensure_future(self._copy(links))
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if self._task.cancelled():
            self._problem("copying was interrupted")
        else:
            try:
                self._task.result()
            except OSError as error:  # the working directory has been removed, for example
                self._problem(str(error))
        self._summarize()

    def _problem(self, text: str) -> None:
        self._problems.append(text)
        self._screen.warning(f"--fetch: {text}")

    async def _copy(self, links: Sequence[AgentLink]) -> None:
        lists = await asyncio.gather(*(self._find(link) for link in links))
        by_host = {link.name: files for link, files in zip(links, lists, strict=True)}
        found = [one.path for files in lists for one in files]
        for pattern in self._patterns:
            if not any(is_asked_for(path, [pattern]) for path in found) and not any(link.lost for link in links):
                self._problem(f"{pattern}: no host has such a file")
        wanted = await asyncio.to_thread(self._changed, by_host)
        self._size = sum(one.found.size for one in wanted)
        free = shutil.disk_usage(self._root).free - _ROOM
        if self._size > free:
            self._problem(
                f"the results have {size_text(self._size)}, but {self._root} has only {size_text(max(0, free))} free"
            )
            return
        await asyncio.gather(*(self._receive(link, [one for one in wanted if one.host == link.name]) for link in links))

    async def _find(self, link: AgentLink) -> list[Found]:
        """The files that a host has and the user has asked for."""
        found: dict[str, Found] = {}
        try:
            await link.request("read_results", limit=STALLED, what="find", names=list(self._patterns))
            over = False
            for _ in range(_MOST_LISTS):
                if over or len(found) > MOST_FILES:
                    break
                part = await link.request("more_results", limit=STALLED)
                over = part["over"] or bool(part["problem"])
                for one in part["files"]:
                    file = Found(path=one["path"], size=one["size"], mtime_ns=one["mtime_ns"])
                    if is_safe(file) and is_asked_for(file.path, self._patterns):
                        found[file.path] = file
                if part["problem"]:
                    self._problem(f"{link.name}: {printable(part['problem'])}")
        except HostError as error:
            self._problem(f"{error.message}; its results were not copied")
            return []
        taken, left_out = within_limits(list(found.values()))
        if left_out:
            size = size_text(sum(one.size for one in left_out))
            self._problem(f"{link.name}: {count(len(left_out), 'file')} left out ({size}): too much to copy this way")
        return taken

    def _changed(self, by_host: Mapping[str, Sequence[Found]]) -> list[Copy]:
        """What to copy: not the files that --sync has sent and the job has left alone, nor those copied before."""
        changed = {host: [one for one in files if not self._is_here(one.path, one)] for host, files in by_host.items()}
        return [one for one in copies(changed) if not self._is_here(one.target, one.found)]

    def _is_here(self, target: str, found: Found) -> bool:
        """Whether this machine has a file already, by its size and its time in seconds, as rsync compares them."""
        try:
            known = os.stat(self._root / target)
        except OSError:
            return False
        return known.st_size == found.size and int(known.st_mtime) == found.mtime_ns // 10**9

    async def _receive(self, link: AgentLink, wanted: Sequence[Copy]) -> None:
        if not wanted:
            return
        coming = {one.found.path: one for one in wanted}
        unwanted = 0
        file: _Incoming | None = None
        following: asyncio.Future[ResultPart] | None = None
        try:
            await link.request("read_results", limit=STALLED, what="send", names=list(coming))
            following = _next_part(link)
            while coming:
                part = await following
                if part["over"] or unwanted > _MOST_UNWANTED:
                    why = printable(part["problem"]) or "it did not send all files that it had listed"
                    self._problem(f"{link.name}: {why}; {count(len(coming), 'file')} not copied")
                    break
                following = _next_part(link)  # comes while this one is written
                copy = coming.get(part["path"])
                if copy is None:
                    unwanted += 1  # the rest of a file that has grown, or of a host that lies
                    continue
                try:
                    file = file or await asyncio.to_thread(_Incoming, self._root, copy)
                    over = bool(part["problem"]) or await self._take(file, part["piece"])
                    problem = printable(part["problem"])
                except (OSError, ValueError) as error:
                    over, problem = True, str(error)
                if problem:
                    self._problem(f"{link.name}: {printable(copy.found.path)}: {problem}")
                if over or problem:
                    file = _closed(file)
                    del coming[part["path"]]
        except HostError as error:
            self._problem(f"{error.message}; {count(len(coming), 'file')} not copied")
        finally:
            _closed(file)
            if following is not None:
                following.cancel()

    async def _take(self, file: _Incoming, piece: str) -> bool:
        """Write a piece of a file; an empty one is its end. Returns whether it is."""
        data = base64.b64decode(piece, validate=True)
        self._done += len(data)
        if data:
            await asyncio.to_thread(file.write, data)
            return False
        if await asyncio.to_thread(file.finish):
            self._kept.append(file.copy.target)
        self._copied.append(file.copy)
        return True

    def _summarize(self) -> None:
        if self._copied:
            size = size_text(sum(copy.found.size for copy in self._copied))
            hosts = sorted({copy.host for copy in self._copied}, key=self._hosts.index)
            self._screen.info(f"copied {count(len(self._copied), 'file')} ({size}) from {names(hosts)} to {self._root}")
        apart = {copy.target.partition("/")[0] for copy in self._copied if copy.target != copy.found.path}
        if apart:
            self._screen.info(
                f"files that an earlier host has too are in {names([f'{name}/' for name in sorted(apart)])}"
            )
        if self._kept:
            kept = names([printable(f"{name}~") for name in self._kept], 4)
            self._screen.warning(f"{count(len(self._kept), 'file')} replaced; previous versions: {kept}")


class _Incoming:
    """A file that is being written beside its place, and takes it when it is complete."""

    def __init__(self, root: Path, copy: Copy) -> None:
        self.copy = copy
        self._target = root / copy.target
        folder = self._target.parent
        if not _existing(folder).resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{folder} leads out of the working directory")
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f".muster-{token_hex(4)}"
        self._file = open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")  # noqa: SIM115
        self._left = copy.found.size

    def write(self, data: bytes) -> None:
        """Take what comes next."""
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it changed while it was copied")
        self._file.write(data)

    def finish(self) -> bool:
        """Put the file in its place; returns whether another one was there, which is kept beside it."""
        if self._left:
            raise ValueError("it changed while it was copied")
        self._file.close()
        os.utime(self._path, ns=(self.copy.found.mtime_ns, self.copy.found.mtime_ns))
        existed = os.path.lexists(self._target)
        if existed and self._target.is_dir():
            raise ValueError("this machine has a directory of that name")
        if existed:
            os.replace(self._target, f"{self._target}~")
        os.replace(self._path, self._target)
        return existed

    def close(self) -> None:
        """Leave nothing but what is finished."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _next_part(link: AgentLink) -> asyncio.Future[ResultPart]:
    return asyncio.ensure_future(link.request("more_results", limit=STALLED))


def _closed(file: _Incoming | None) -> None:
    if file is not None:
        file.close()


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    return path if os.path.lexists(path) else _existing(path.parent)
