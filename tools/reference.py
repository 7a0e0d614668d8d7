"""Generates the reference pages of the documentation from the code: `python -m tools.reference`.

The pages are kept in docs/reference, so that they can be read without building anything; a test fails when they are not
what the code says. Text that the code cannot provide is here, in tables; a name that a table lacks is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tools import man_page
from tools.findings import findings_page
from tools.protocol_page import protocol_page
from tools.python_names import python_page

from muster.cli import COMMANDS, main
from muster.cli.lab import COMMANDS as LAB_COMMANDS
from muster.cli.lab import FAULTS
from muster.environment import CARRIED
from muster.errors import EXIT_MUSTER, EXIT_USAGE
from muster.hosts import parse_hosts
from muster.plan import make_plan, rank_environment

ROOT = Path(__file__).parents[1]

HEAD = "<!-- written by `python -m tools.reference` -->\n\n"

SUBCOMMANDS = {"lab": [*LAB_COMMANDS, *FAULTS], "recipes": ["copy"]}


def pages() -> dict[str, str]:
    """All pages of the reference, by file name."""
    return {
        "commands.md": commands_page(),
        "python.md": python_page(ROOT / "src"),
        "environment.md": environment_page(),
        "exit-codes.md": exit_codes_page(),
        "checks.md": findings_page(ROOT),
        "scoreboards.md": scoreboards_page(),
        "protocol.md": protocol_page(),
    }


def every_command() -> Iterator[tuple[str, ...]]:
    """All commands and subcommands, as typed."""
    yield ()
    for name in COMMANDS:
        yield (name,)
        for sub in SUBCOMMANDS.get(name, []):
            yield (name, sub)


def help_of(command: tuple[str, ...]) -> str:
    """Output of `muster COMMAND --help` on a terminal with 80 columns."""
    said = io.StringIO()
    os.environ["COLUMNS"] = "80"
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return said.getvalue()


def commands_page() -> str:
    """Each command's own help."""
    parts = ["# Commands\n\nOutput of `muster COMMAND --help`.\n"]
    for command in every_command():
        level = "##" if len(command) < 2 else "###"
        parts.append(f"{level} {' '.join(('muster', *command))}\n\n```text\n{help_of(command)}```\n")
    return "\n".join(parts)


MEANING = {
    "RANK": "global rank, 0 to WORLD_SIZE - 1; hosts are filled in the order in which they are listed",
    "LOCAL_RANK": "rank on this host: the index of its GPU (`torch.cuda.set_device`)",
    "WORLD_SIZE": "number of ranks on all hosts",
    "LOCAL_WORLD_SIZE": "number of ranks on this host; hosts may differ",
    "GROUP_RANK": "index of the host",
    "GROUP_WORLD_SIZE": "number of hosts",
    "ROLE_NAME": "value of torchrun's `--role`, or `default`",
    "ROLE_RANK": "same as RANK",
    "ROLE_WORLD_SIZE": "same as WORLD_SIZE",
    "MASTER_ADDR": "an address of the first host that every host has reached",
    "MASTER_PORT": "a free port on the first host, where the TCPStore of the job listens",
    "TORCHELASTIC_RUN_ID": "job ID",
    "TORCHELASTIC_RESTART_COUNT": "number of restarts so far; 0 at first",
    "TORCHELASTIC_MAX_RESTARTS": "value of `--restarts`",
    "TORCHELASTIC_USE_AGENT_STORE": "the store runs in its own process; False if the script chooses a port itself",
    "MUSTER_JOB": "job ID; the job directory in `~/.local/state/muster/jobs` has the same name",
    "OMP_NUM_THREADS": "CPUs of the host divided by its ranks, unless you set it",
    "CUDA_VISIBLE_DEVICES": "the GPUs of `host:0,3`; unchanged if you give no GPU numbers",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID if you give GPU numbers, so that they match nvidia-smi",
}
"""Meaning of each variable of `muster.plan.rank_environment`."""


def environment_page() -> str:
    """The environment variables of a rank, with an example."""
    hosts = parse_hosts("a:2,b:0,3")
    plan = make_plan("20261115-063700-train-53b5", hosts, threads=[8, 8], restarts=3, user_env={})
    example = rank_environment(plan.at("10.0.0.1", 45753), 3)
    unknown = set(example) ^ set(MEANING)
    if unknown:
        raise SystemExit(f"tools/reference.py: MEANING and the environment of a rank differ in {sorted(unknown)}")
    rows = [f"| `{name}` | `{example[name]}` | {text} |" for name, text in MEANING.items()]
    carried = ", ".join(f"`{name}`" for name in CARRIED)
    return ENVIRONMENT.format(rows="\n".join(rows), carried=carried)


ENVIRONMENT = """\
# Environment variables of a rank

Muster sets the variables that torchrun sets, so scripts written for torchrun work unchanged. The example is rank 3 of
`muster run -H a:2,b:0,3 --restarts 3 train.py`.

| variable | example | meaning |
|---|---|---|
{rows}

If a host would choose a network interface that other hosts cannot reach, Muster sets `GLOO_SOCKET_IFNAME` and
`NCCL_SOCKET_IFNAME` there. Under Slurm, ranks also get `SLURM_PROCID`, `SLURM_LOCALID`, `SLURM_NTASKS` and related
variables, with the values srun would set. `MUSTER_DEADLINE_FILE` names a file with the [deadline of a drained
job](../drain.md#without-a-signal-handler). See also [what other launchers
set](../engines/by-hand.md#what-each-sets-in-the-environment) and [everything Muster changes in a
rank](../inside.md#environment-variables).

## Variables sent to other hosts

Muster sends these variables of yours to other hosts by default: {carried}.

`--env NAME` also sends NAME with its current value, `--env NAME=VALUE` sets it on every host. Variables travel over the
connection to the agents, never on a command line of a host. PATH, PYTHONPATH and LD_LIBRARY_PATH are not sent, because
they describe this machine.
"""


EXIT_CODES = """\
# Exit codes

| code | command | meaning |
|---|---|---|
| 0 | every command | success |
| 1 to 255 | `muster run` | exit code of the rank that failed first, on any host |
| 128 + n | `muster run` | signal n ended that rank: 137 is SIGKILL (for example the OOM killer), 139 SIGSEGV |
| {usage} | every command | wrong command line, host list or file; nothing was started |
| 124 | `muster run` | `--on-hang kill` ended a hung job |
| {muster} | every command | Muster or a host failed, not the script: no login, a lost host, no torch on a host |
| 130 | every command | Ctrl-C |
| 143 | `muster run` | SIGTERM, `muster stop`, or the scheduler ended the job (time limit, preemption, scancel, qdel) |

## By command
"""


def exit_codes_page() -> str:
    """The exit codes shared by all commands, and the paragraph on exit codes in each help."""
    lines = [EXIT_CODES.format(usage=EXIT_USAGE, muster=EXIT_MUSTER)]
    for command in every_command():
        found = re.search(r"^Exit code: (.*?)(?:\n\n|\Z)", help_of(command), re.MULTILINE | re.DOTALL)
        if found:
            lines.append(f"- `{' '.join(('muster', *command))}`: {' '.join(found.group(1).split())}")
    return "\n".join([*lines, ""])


def scoreboards_page() -> str:
    """The results of `make bench`, and links to the other scoreboards."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    results = results.replace("# Measured", "## Start, restart and failure (`make bench`)", 1)
    return "\n".join(
        [
            "# Scoreboards\n",
            "A program in this repository writes each of these tables and keeps every round it measured.\n",
            results.strip(),
            "\n## On other pages\n",
            *(f"- [{title}](../measurements/{page}.md)" for title, page in measurements()),
            "- [Recipes: ResNet](../recipes/resnet50.md#results), [MNIST](../recipes/mnist.md#results),",
            "  [Tacotron2](../recipes/tacotron2.md#performance), [GPT](../recipes/gpt.md#performance)",
            "- [`muster bench`: accuracy](../bench.md#accuracy)",
            "",
        ]
    )


def measurements() -> list[tuple[str, str]]:
    """The pages of docs/measurements: (title, name of the file without its ending)."""
    found: list[tuple[str, str]] = []
    for path in sorted((ROOT / "docs" / "measurements").glob("*.md")):
        title = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        if title is None:
            raise SystemExit(f"{path}: the page has no title")
        found.append((title.group(1), path.stem))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tools.reference", description="Generate the reference from the code."
    )
    parser.add_argument(
        "--to", type=Path, default=ROOT / "docs" / "reference", help="output directory (default: docs/reference)"
    )
    folder = parser.parse_args().to
    if folder == ROOT / "docs" / "reference":
        man_page.write()
    for name, text in pages().items():
        (folder / name).write_text(HEAD + text, encoding="utf-8")
