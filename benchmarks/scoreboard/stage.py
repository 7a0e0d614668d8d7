"""Three lab hosts with one fault; `muster check` runs on the first, and its fix is applied."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scoreboard.fault import Fault
from muster.lab import Lab

MUSTER = str(Path(sys.executable).with_name("muster"))
PROJECT = "/root/project"
HOSTS = ("h1", "h2", "h3")
LIMIT = 90.0

SCRIPT = "import model\n"
MODEL = "import torch\n"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The output of `muster check --json`."""

    code: int
    seconds: float
    data: Mapping[str, Any]

    def of(self, row: int) -> list[Mapping[str, Any]]:
        """The findings of one row."""
        return [finding for finding in self.data["findings"] if finding["row"] == row]

    @property
    def blamed(self) -> set[str]:
        """All hosts named in findings."""
        return {host for finding in self.data["findings"] for host in finding["hosts"]}


class Stage:
    """The hosts, running and healthy until a fault is injected."""

    def __init__(self, lab: Lab, *, deep: bool = False) -> None:
        self.lab = lab
        self.deep = deep
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": os.path.expanduser("~"),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
        }
        for host in lab.names:
            self.sh(host, f"mkdir -p {PROJECT}")
            self.write(host, f"{PROJECT}/train.py", SCRIPT)
            self.write(host, f"{PROJECT}/model.py", MODEL)

    def sh(self, host: str, script: str) -> str:
        """Run a shell script on a host; a failure is an error of the scoreboard."""
        done = self.lab.run(host, ["bash", "-c", script], timeout=30)
        if done.returncode:
            raise RuntimeError(f"{host}: {script}\n{done.stdout}{done.stderr}")
        return done.stdout

    def background(self, host: str, script: str) -> int:
        """Start a background process, and return its process id on the host."""
        return int(self.sh(host, f"nohup setsid bash -c {json.dumps(script)} >/dev/null 2>&1 & echo $!"))

    def write(self, host: str, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file on a host."""
        folder = os.path.dirname(path)
        script = f"mkdir -p {folder} && cat > {path} && chmod {mode:o} {path}"
        done = self.lab.run(host, ["bash", "-c", script], timeout=30, input=text)
        assert done.returncode == 0, done.stderr

    def restart_sshd(self, host: str) -> None:
        """Let the sshd of a host reload its files; it writes its pid file when it listens again."""
        file = "/run/muster-lab/sshd.pid"
        wait = f"for i in $(seq 250); do [ -s {file} ] && exit; sleep 0.1; done; exit 1"
        self.sh(host, f"pid=$(cat {file}); rm {file}; kill -HUP $pid; {wait}")

    def check(self, options: Sequence[str], script: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Report:
        """Run `muster check` on the first host."""
        deep = ["--deep"] if self.deep else []
        return self.report([MUSTER, "check", "-H", ",".join(self.lab.names), *deep, "--json", *options, *script], env)

    def report(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Report:
        """Run a check and read its JSON."""
        begin = time.monotonic()
        process = self.lab.popen(
            "h1",
            list(argv),
            cwd=PROJECT,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise RuntimeError(f"{' '.join(argv)}: still running after {LIMIT:.0f} s") from None
        seconds = time.monotonic() - begin
        if not out.startswith("{"):
            raise RuntimeError(f"{' '.join(argv)}: exit code {process.returncode}\n{out}{err}")
        return Report(code=process.returncode, seconds=seconds, data=json.loads(out))

    def apply_fix(self, fault: Fault, line: str) -> Report:
        """Run the fix exactly as printed, then check again."""
        if line.startswith("muster check "):
            return self.report(["bash", "-c", line.replace("muster", MUSTER, 1)], fault.env)
        if line.startswith("unset "):
            name = line.split()[1]
            return self.check(fault.options, fault.script, {k: v for k, v in fault.env.items() if k != name})
        code, said = self.type(line.replace("muster setup", f"{MUSTER} setup"), fault.answers, fault.env)
        if code:
            raise RuntimeError(f"the fix failed with exit code {code}: {line}\n{said}")
        return self.check(fault.options, fault.script, fault.env)

    def type(self, line: str, answers: Sequence[tuple[str, str]], env: Mapping[str, str]) -> tuple[int, str]:
        """Run a command in a terminal of the first host, answering its prompts."""
        master, slave = pty.openpty()
        process = self.lab.popen(
            "h1",
            ["setsid", "--ctty", "--wait", "bash", "-c", line],
            cwd=PROJECT,
            env={**self.env, **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        said, waiting = "", list(answers)
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            ready, _, _ = select.select([master], [], [], 0.2)
            try:
                piece = os.read(master, 4096).decode(errors="replace") if ready else ""
            except OSError:
                break
            if ready and not piece:
                break
            said += piece
            if waiting and waiting[0][0] in said.rpartition("\n")[2]:
                os.write(master, waiting.pop(0)[1].encode() + b"\n")
            if not ready and process.poll() is not None:
                break
        os.close(master)
        try:
            return process.wait(10), said
        except subprocess.TimeoutExpired:
            process.kill()
            return -1, said
