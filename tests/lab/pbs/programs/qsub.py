"""qsub: reads directives and options, records the job and prints its id."""

from __future__ import annotations

import getopt
import os
import pwd
import re
import secrets
import shlex
import socket
import sys
import time
from pathlib import Path

import records
from request import Refused, read_request
from wire import SITE, call

OPTIONS = "N:q:l:o:e:j:A:P:v:Vk:S:J:m:M:r:p:W:z"
Options = list[tuple[str, str]]


def main() -> int:
    try:
        given, operands = getopt.getopt(sys.argv[1:], OPTIONS)
    except getopt.GetoptError as error:
        print(f"qsub: {error}\nusage: qsub [-A account] [-j oe|eo] [-l resource_list] ... [script]", file=sys.stderr)
        return 2
    try:
        script = Path(operands[0]).read_text() if operands else sys.stdin.read()
    except OSError as error:
        print(f"qsub: script file:: {error.strerror}", file=sys.stderr)
        return 1
    try:
        job = submit(script, directives(script), given, default_name=Path(operands[0]).name if operands else "STDIN")
    except Refused as error:
        print(error, file=sys.stderr)
        return error.code
    if "-z" not in {option for option, _ in [*directives(script), *given]}:
        print(job)
    return 0


def directives(script: str) -> Options:
    """The options of `#PBS` lines, up to the first line that is neither comment nor empty."""
    found: Options = []
    for line in script.splitlines():
        if line.startswith("#PBS"):
            try:
                options, rest = getopt.getopt(shlex.split(line[4:]), OPTIONS)
            except (getopt.GetoptError, ValueError):
                options, rest = [], ["?"]
            if rest:
                raise Refused(f"qsub: directive error: {line[4:].strip()} ", 1)
            found += options
        elif line.strip() and not line.startswith("#"):
            break
    return found


def submit(script: str, written: Options, typed: Options, default_name: str) -> str:
    options = [*written, *typed]
    given = dict(options)  # the last of each wins: the command line stands behind the directives
    name = given.get("-N", default_name)
    if not re.fullmatch(r"[A-Za-z0-9_.+-]{1,230}", name):
        raise Refused("qsub: illegal -N value", 2)
    # Of resources the first wins: what was typed, then the directives in their order.
    resources = [value for option, value in [*typed, *written] if option == "-l"]
    request = read_request(resources, SITE["default_chunk"])
    awaited = dependency([value for option, value in options if option == "-W"])
    indices = array_indices(given["-J"]) if "-J" in given else [None]
    with records.locked():
        number = records.next_number()
        for index in indices:
            job = f"{number}{'' if index is None else f'[{index}]'}.{SITE['server']}"
            records.save(
                {
                    "id": job,
                    "number": number,
                    "index": index,
                    "name": name,
                    "queue": given.get("-q", "workq"),
                    "state": "Q" if awaited is None else "H",
                    "awaits": awaited,
                    "rerun": False,
                    "runs": 0,
                    "comment": "",
                    **request,
                    "script": script,
                    "shell": given.get("-S"),
                    "join": {"oe": "oe", "eo": "eo"}.get(given.get("-j", ""), ""),
                    "keep": given.get("-k", "").replace("n", ""),
                    "paths": output_paths(given, name, job),
                    "account": given.get("-A"),
                    "project": given.get("-P", "_pbs_project_default"),
                    "variables": variables(options, given.get("-q", "workq")),
                    "user": pwd.getpwuid(os.getuid()).pw_name,
                    "submit_host": socket.gethostname(),
                    "cookie": secrets.token_hex(16).upper(),
                    "ctime": time.time(),
                    "exit_status": None,
                    "delivered": False,
                }
            )
    call(socket.gethostname(), do="schedule")
    return f"{number}{'[]' if '-J' in given else ''}.{SITE['server']}"


def dependency(attributes: list[str]) -> str | None:
    """The job after whose end this one may run (`-W depend=afterany:12.pbssrv`); other attributes of -W are taken."""
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        kind, _, job = value.partition(":")
        if name == "depend":
            found = records.named(job) if kind == "afterany" else None
            if found is None:
                raise Refused("qsub: Job rejected by the server: invalid dependency", 1)
            return found["id"]
        if name != "tolerate_node_failures" or value not in ("none", "all", "job_start"):
            raise Refused("qsub: illegal -W value", 2)
    return None


def output_paths(given: dict[str, str], name: str, job: str) -> dict[str, str]:
    """Absolute paths of both output files on this host; `-o host:path` may name the host, too."""
    number = job.partition(".")[0].replace("[", ".").replace("]", "")
    number, _, index = number.partition(".")
    paths: dict[str, str] = {}
    for stream in "oe":
        wanted = given.get(f"-{stream}", "").rpartition(":")[2]
        paths[stream] = str(Path.cwd() / (wanted or f"{name}.{stream}{number}{f'.{index}' if index else ''}"))
    return paths


def variables(options: Options, queue: str) -> dict[str, str]:
    """PBS_O_* and what -v asks for; -V does nothing, because of a bug in the newest release (23.06.06)."""
    here = {
        "HOME": os.environ.get("HOME"),
        "LANG": os.environ.get("LANG"),
        "LOGNAME": pwd.getpwuid(os.getuid()).pw_name,
        "PATH": os.environ.get("PATH"),
        "MAIL": os.environ.get("MAIL"),
        "SHELL": os.environ.get("SHELL", "/bin/bash"),
        "WORKDIR": os.getcwd(),
        "SYSTEM": "Linux",
        "QUEUE": queue,
        "HOST": socket.gethostname(),
    }
    found = {f"PBS_O_{name}": value for name, value in here.items() if value is not None}
    for option, value in options:
        if option == "-v":
            for item in split_list(value):
                name, equals, text = item.partition("=")
                if equals or name in os.environ:
                    found[name] = text if equals else os.environ[name]
    return found


def split_list(text: str) -> list[str]:
    """The items of -v: separated by commas, except inside quotes, which go."""
    items: list[str] = []
    item = quote = ""
    for char in text:
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif char == "," and not quote:
            items.append(item)
            item = ""
        else:
            item += char
    return [*items, item]


def array_indices(text: str) -> list[int]:
    match = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise Refused("qsub: illegal -J value", 2)
    return list(range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)))


sys.exit(main())
