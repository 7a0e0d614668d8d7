"""Writes the reference of the documentation from the code: `python -m tools.reference`.

The pages are kept in docs/reference, so that they can be read without building anything; a test fails when they are not
what the code says. What a person must add to the code's own words stands here in tables, and a name that a table lacks
is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

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

SUBCOMMANDS = {"lab": [*LAB_COMMANDS, *FAULTS], "recipes": ["copy"]}


def pages() -> dict[str, str]:
    """Every page of the reference, by its file's name."""
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
    """Every command and subcommand, as it is typed."""
    yield ()
    for name in COMMANDS:
        yield (name,)
        for sub in SUBCOMMANDS.get(name, []):
            yield (name, sub)


def help_of(command: tuple[str, ...]) -> str:
    """What `muster COMMAND --help` prints on a terminal of 80 columns."""
    said = io.StringIO()
    os.environ["COLUMNS"] = "80"
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return said.getvalue()


def commands_page() -> str:
    """Each command's own help."""
    parts = ["# Commands\n\nThe words of `muster COMMAND --help`.\n"]
    for command in every_command():
        level = "##" if len(command) < 2 else "###"
        parts.append(f"{level} {' '.join(('muster', *command))}\n\n```text\n{help_of(command)}```\n")
    return "\n".join(parts)


MEANING = {
    "RANK": "the number of this rank, 0 to WORLD_SIZE - 1; hosts are filled in the order they are listed",
    "LOCAL_RANK": "its number on its host: the GPU it takes (`torch.cuda.set_device`)",
    "WORLD_SIZE": "how many ranks there are on all hosts",
    "LOCAL_WORLD_SIZE": "how many ranks this host has; hosts may differ",
    "GROUP_RANK": "the number of the host",
    "GROUP_WORLD_SIZE": "how many hosts there are",
    "ROLE_NAME": "what torchrun's `--role` says; `default` without it",
    "ROLE_RANK": "the same as RANK",
    "ROLE_WORLD_SIZE": "the same as WORLD_SIZE",
    "MASTER_ADDR": "an address of the first host that every host was seen to reach",
    "MASTER_PORT": "a port there that was free, where the store of the job listens",
    "TORCHELASTIC_RUN_ID": "the name of the job",
    "TORCHELASTIC_RESTART_COUNT": "how often the ranks have been started again: 0 at first",
    "TORCHELASTIC_MAX_RESTARTS": "what `--restarts` says",
    "TORCHELASTIC_USE_AGENT_STORE": "the store runs beside the ranks; False if the script chooses a port itself",
    "MUSTER_JOB": "the name of the job; its folder below `~/.local/state/muster/jobs` has it too",
    "OMP_NUM_THREADS": "the host's CPUs divided by its ranks, unless you have set it",
    "CUDA_VISIBLE_DEVICES": "the GPUs that `host:0,3` names; left alone otherwise",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID beside it, so that the numbers are those of nvidia-smi",
}
"""What each variable of `muster.plan.rank_environment` is for."""


def environment_page() -> str:
    """The variables of a rank, with those of one rank as an example."""
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
# The environment of a rank

The variables that torchrun sets, so that a script written for torchrun finds them. The example is rank 3 of
`muster run -H a:2,b:0,3 --restarts 3 train.py`.

| variable | example | what it is |
|---|---|---|
{rows}

Where a host's own choice of a network interface would be one that other hosts do not reach, `GLOO_SOCKET_IFNAME` and
`NCCL_SOCKET_IFNAME` are set there. Under Slurm the ranks also find `SLURM_PROCID`, `SLURM_LOCALID`, `SLURM_NTASKS` and
the like as srun would have set them. [What other launchers
set](../engines/by-hand.md#what-each-sets-in-the-environment), and what torchrun sets besides, is on a page of its own.

## What travels to other hosts

Of your own variables, without being asked: {carried}.

`--env NAME` adds one with the value it has here, `--env NAME=VALUE` one with a value of its own, on every host. They
travel over the channel to the agents, never on a command line. PATH, PYTHONPATH and LD_LIBRARY_PATH stay here: they
describe this machine.
"""


EXIT_CODES = """\
# Exit codes

| code | of | meaning |
|---|---|---|
| 0 | every command | all went well |
| 1 to 255 | `muster run` | that of the script: of the rank that failed first, over all hosts |
| 128 + n | `muster run` | signal n ended that rank: 137 is SIGKILL (as the kernel does for memory), 139 SIGSEGV |
| {usage} | every command | the command line, a host list or a file is wrong; nothing was started |
| {muster} | every command | Muster or a host failed, not the script: no login, a host lost, no torch there |
| 130 | every command | Ctrl-C |
| 143 | `muster run` | the scheduler ended the job (time limit, scancel, qdel), and the ranks died of it |

## In the words of each command
"""


def exit_codes_page() -> str:
    """The codes all commands share, and the paragraph on exit codes in each help."""
    lines = [EXIT_CODES.format(usage=EXIT_USAGE, muster=EXIT_MUSTER)]
    for command in every_command():
        words = re.search(r"^Exit code: (.*?)(?:\n\n|\Z)", help_of(command), re.MULTILINE | re.DOTALL)
        if words:
            lines.append(f"- `{' '.join(('muster', *command))}`: {' '.join(words.group(1).split())}")
    return "\n".join([*lines, ""])


def scoreboards_page() -> str:
    """What was measured, and where the other boards are."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    results = results.replace("# Measured", "## Start-up, restart, failure (`make bench`)", 1)
    others = [
        f"- [{title}](../{page}.md#{anchor})" for title, page, anchor in scoreboards_in_docs() if page != "scoreboards"
    ]
    return "\n".join(
        [
            "# Scoreboards\n",
            "Each is a table that a program of this repository writes, with every round it measured.\n",
            results.strip(),
            "\n## On other pages\n",
            *others,
            "- [Recipes: ResNet](../recipes/resnet50.md#measured), [MNIST](../recipes/mnist.md#measured),",
            "  [Tacotron2](../recipes/tacotron2.md#how-it-is-fast)",
            "- [`muster bench`: how right it is](../bench.md#how-right-it-is)",
            "",
        ]
    )


def scoreboards_in_docs() -> list[tuple[str, str, str]]:
    """The headings with the word scoreboard in docs/: (page's title, page, anchor)."""
    found: list[tuple[str, str, str]] = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        heading = re.search(r"^## (.*scoreboard.*)$", text, re.MULTILINE | re.IGNORECASE)
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        if heading and title:
            anchor = re.sub(r"[^\w\- ]", "", heading.group(1)).strip().lower().replace(" ", "-")
            found.append((title.group(1), path.stem, anchor))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description="Write the reference from the code.")
    parser.add_argument(
        "--to", type=Path, default=ROOT / "docs" / "reference", help="the folder (default: where it is)"
    )
    folder = parser.parse_args().to
    for name, text in pages().items():
        (folder / name).write_text(f"<!-- written by `python -m tools.reference` -->\n\n{text}", encoding="utf-8")
