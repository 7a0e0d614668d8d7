"""qstat: the jobs as a table, in full (-f), with those that have finished (-x), or as JSON (-F json)."""

from __future__ import annotations

import getopt
import json
import sys
import time
from collections.abc import Iterator

import records
from request import Chunk
from wire import SITE, TORQUE, call

FINISHED = 15139 % 256
UNKNOWN = 15001 % 256
LINE = 78


def main() -> int:
    try:
        options, ids = getopt.gnu_getopt(sys.argv[1:], "fxF:n1auws")
    except getopt.GetoptError as error:
        print(f"qstat: {error}", file=sys.stderr)
        return 2
    given = dict(options)
    history = "-x" in given
    if history and not SITE["history"]:
        print("qstat: PBS is not configured to maintain job history", file=sys.stderr)
        return 0
    code, found = look_up(ids, history)
    if given.get("-F") == "json":
        print(json.dumps(as_json(found), indent=4))
    elif "-f" in given:
        for record in found:
            print(f"Job Id: {record['id']}")
            for name, value in attributes(record):
                print(folded(name, value))
            print()
    elif found:
        print_table(found, comments="-s" in given)
    return code


def look_up(ids: list[str], history: bool) -> tuple[int, list[records.Record]]:
    if not ids:
        return 0, [record for record in records.everything() if history or record["state"] != "F"]
    code = 0
    found: list[records.Record] = []
    for text in ids:
        record = records.named(text)
        over = record is not None and record["state"] == "F"
        if record is None or (over and not SITE["history"]):
            name = text if "." in text else f"{text}.{SITE['server']}"
            print(f"qstat: Unknown Job Id {name}", file=sys.stderr)
            code = UNKNOWN
        elif over and not history:
            sentence = "Job has finished, use -x or -H to obtain historical job information"
            print(f"qstat: {record['id']} {sentence}", file=sys.stderr)
            code = FINISHED
        else:
            found.append(record)
    return code, found


def print_table(found: list[records.Record], *, comments: bool) -> None:
    print("Job id            Name             User              Time Use S Queue")
    print("----------------  ---------------- ----------------  -------- - -----")
    for record in found:
        used = "00:00:00" if record["state"] in "RF" else "       0"
        line = f"{record['id']:<17} {record['name'][:16]:<16} {record['user']:<17} {used} {record['state']}"
        print(f"{line} {record['queue']:<16}")
        if comments:
            print(f"   {record['comment']}")


def attributes(record: records.Record) -> Iterator[tuple[str, str]]:
    """The attributes of a job in the order in which qstat prints them."""
    yield "Job_Name", record["name"]
    yield "Job_Owner", f"{record['user']}@{record['submit_host']}"
    yield "job_state", record["state"]
    yield "queue", record["queue"]
    yield "server", SITE["server"]
    if record["account"]:
        yield "Account_Name", record["account"]
    yield "ctime", time.ctime(record["ctime"])
    yield "Error_Path", f"{record['submit_host']}:{record['paths']['e']}"
    placed = record["state"] in "RSEF" and "stime" in record
    if placed:
        chunks = record["chunks"]
        yield "exec_host", "+".join(map(_torque_host if TORQUE else _exec_host, chunks))
        if not TORQUE:
            yield "exec_vnode", "+".join(map(_exec_vnode, chunks))
    yield "Join_Path", record["join"] or "n"
    yield "mtime", time.ctime(record["mtime"])
    yield "Output_Path", f"{record['submit_host']}:{record['paths']['o']}"
    yield from _resources(record)
    if record["state"] in "RS":
        yield from _used(record)
    if placed:
        yield "stime", time.ctime(record["stime"])
        yield "run_count", str(record["runs"] + 1)
    yield "project", record["project"]
    yield "Variable_List", ",".join(f"{name}={_escaped(value)}" for name, value in record["variables"].items())
    if record["comment"]:
        yield "comment", record["comment"]
    if record["exit_status"] is not None:
        yield "Exit_status", str(record["exit_status"])


def _resources(record: records.Record) -> Iterator[tuple[str, str]]:
    chunks = record["chunks"]
    for name in ("mpiprocs", "ncpus", "ngpus"):
        total = sum(chunk.get(name, 0) for chunk in chunks)
        if total:
            yield f"Resource_List.{name}", str(total)
    yield "Resource_List.nodect", str(len(chunks))
    if record["nodes"]:
        yield "Resource_List.nodes", record["nodes"]
    if not TORQUE:
        yield "Resource_List.place", record["place"]
        yield "Resource_List.select", record["select"]
    if record["walltime"] is not None:
        minutes, seconds = divmod(record["walltime"], 60)
        yield "Resource_List.walltime", f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def _used(record: records.Record) -> Iterator[tuple[str, str]]:
    """What the sessions of the job use, as its moms count it."""
    found: list[dict[str, int]] = []
    for host in dict.fromkeys(chunk["host"] for chunk in record["chunks"]):
        try:
            found.append(call(host, 1, do="usage", job=record["id"]))
        except OSError:
            pass  # a dead host
    minutes, seconds = divmod(sum(one.get("cpu", 0) for one in found), 60)
    yield "resources_used.cput", f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
    yield "resources_used.mem", f"{sum(one.get('memory', 0) for one in found) >> 10}kb"


def _exec_host(chunk: Chunk) -> str:
    if len(_shares(chunk)) > 1:
        return f"{chunk['host']}/{chunk['index']}*0"
    return f"{chunk['host']}/{chunk['index']}" + (f"*{chunk['ncpus']}" if chunk["ncpus"] > 1 else "")


def _torque_host(chunk: Chunk) -> str:
    return "+".join(f"{chunk['host']}/{core}" for core in range(chunk["ncpus"]))


def _exec_vnode(chunk: Chunk) -> str:
    shares = [
        vnode + "".join(f":{name}={share[name]}" for name in ("mem", "ncpus", "ngpus") if share.get(name))
        for vnode, share in _shares(chunk).items()
    ]
    return f"({'+'.join(shares)})"


def _shares(chunk: Chunk) -> dict[str, Chunk]:
    """What each vnode of the host gives to a chunk: `h4[0]` until it is full, then `h4[1]`."""
    host = SITE["hosts"][chunk["host"]]
    number, left, shares = host["vnodes"], dict(chunk), {}
    for vnode in range(number) if number > 1 else ():
        share = {name: min(left[name], host[name] // number) for name in ("ncpus", "ngpus")}
        left = {**left, **{name: left[name] - share[name] for name in share}}
        if any(share.values()):
            shares[f"{chunk['host']}[{vnode}]"] = share
    return shares or {chunk["host"]: chunk}


def _escaped(value: str) -> str:
    return value.replace(",", "\\,")


def folded(name: str, value: str) -> str:
    """One attribute, folded as prt_attr() of src/cmds/qstat.c does it: after a comma, or wherever the line is full."""
    text = f"    {name} = "
    column = len(text)
    for index, part in enumerate(value.split(",")):
        if index:
            text += ","
            column += 1
        if len(part) + column < LINE:
            text += part
            column += len(part)
            continue
        if index:
            text += "\n\t"
            column = 9
        for char in part:
            text += char
            column += 1
            if column > LINE:
                text += "\n\t"
                column = 8
    return text


def as_json(found: list[records.Record]) -> dict[str, object]:
    jobs: dict[str, object] = {}
    for record in found:
        fields: dict[str, object] = {}
        for name, value in attributes(record):
            parent, dot, resource = name.partition(".")
            parsed: object = int(value) if value.lstrip("-").isdigit() else value
            if dot:
                inner = fields.setdefault(parent, {})
                assert isinstance(inner, dict)
                inner[resource] = parsed
            else:
                fields[name] = dict(record["variables"]) if name == "Variable_List" else parsed
        jobs[record["id"]] = fields
    return {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": SITE["server"], "Jobs": jobs}


sys.exit(main())
