"""Generates the reference pages of the documentation from the code: `python -m tools.reference`.

The pages are committed in docs/reference, so that they can be read without building the site; a test fails if they are
out of date. Descriptions that are not in the code are in tables here, and a missing entry is an error.
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
    """The help of each command."""
    parts = ["# Commands\n\nOutput of `muster COMMAND --help`.\n"]
    for command in every_command():
        level = "##" if len(command) < 2 else "###"
        parts.append(f"{level} {' '.join(('muster', *command))}\n\n```text\n{help_of(command)}```\n")
    return "\n".join(parts)


MEANING = {
    "RANK": "global rank, from 0 to WORLD_SIZE - 1, in the order in which hosts are listed",
    "LOCAL_RANK": "rank on its host, usually the index of its GPU (`torch.cuda.set_device`)",
    "WORLD_SIZE": "number of ranks on all hosts",
    "LOCAL_WORLD_SIZE": "number of ranks on this host; hosts may differ",
    "GROUP_RANK": "index of the host",
    "GROUP_WORLD_SIZE": "number of hosts",
    "ROLE_NAME": "torchrun's `--role`, by default `default`",
    "ROLE_RANK": "the same as RANK",
    "ROLE_WORLD_SIZE": "the same as WORLD_SIZE",
    "MASTER_ADDR": "an address of the first host that all hosts can reach",
    "MASTER_PORT": "a free port there, on which the store of the job listens",
    "TORCHELASTIC_RUN_ID": "name of the job",
    "TORCHELASTIC_RESTART_COUNT": "number of restarts so far, starting with 0",
    "TORCHELASTIC_MAX_RESTARTS": "the value of `--restarts`",
    "TORCHELASTIC_USE_AGENT_STORE": "whether the store runs outside the ranks; False if the script chooses a port",
    "MUSTER_JOB": "name of the job and of its directory in `~/.local/state/muster/jobs`",
    "OMP_NUM_THREADS": "CPUs of the host divided by its ranks, unless you have set it",
    "CUDA_VISIBLE_DEVICES": "the GPUs in `host:0,3`; otherwise unchanged",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID, set together with CUDA_VISIBLE_DEVICES so that the indexes match nvidia-smi",
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
# Environment variables

Muster sets the environment variables that torchrun sets, so scripts written for torchrun work unchanged. The example is
rank 3 of `muster run -H a:2,b:0,3 --restarts 3 train.py`.

| variable | example | meaning |
|---|---|---|
{rows}

If a host would by default choose a network interface that other hosts cannot reach, Muster also sets
`GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` there. Under Slurm the ranks also have `SLURM_PROCID`, `SLURM_LOCALID`,
`SLURM_NTASKS` and so on, as srun would set them. See also [what other launchers
set](../engines/by-hand.md#what-each-sets-in-the-environment).

## Variables forwarded to other hosts {{ #what-travels-to-other-hosts }}

Muster forwards these of your environment variables by default: {carried}.

`--env NAME` also forwards NAME with its local value, and `--env NAME=VALUE` sets it on every host. Values are sent over
the connection to the agents, never on a command line. PATH, PYTHONPATH and LD_LIBRARY_PATH are not forwarded, because
they describe this machine.
"""


EXIT_CODES = """\
# Exit codes

| code | of | meaning |
|---|---|---|
| 0 | every command | success |
| 1 to 255 | `muster run` | exit code of the script: that of the rank that failed first, over all hosts |
| 128 + n | `muster run` | signal n ended that rank: 137 is SIGKILL (sent by the OOM killer, for example), 139 SIGSEGV |
| {usage} | every command | invalid command line, host list or file; nothing was started |
| {muster} | every command | Muster or a host failed, not the script: login failed, host lost, torch not installed |
| 130 | every command | Ctrl-C |
| 143 | `muster run` | the scheduler ended the job (time limit, scancel, qdel) and its ranks |

## By command
"""


def exit_codes_page() -> str:
    """The exit codes shared by all commands, and the paragraph on exit codes in each help."""
    lines = [EXIT_CODES.format(usage=EXIT_USAGE, muster=EXIT_MUSTER)]
    for command in every_command():
        words = re.search(r"^Exit code: (.*?)(?:\n\n|\Z)", help_of(command), re.MULTILINE | re.DOTALL)
        if words:
            lines.append(f"- `{' '.join(('muster', *command))}`: {' '.join(words.group(1).split())}")
    return "\n".join([*lines, ""])


def scoreboards_page() -> str:
    """The measured tables, and links to those on other pages."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    results = results.replace("# Measured", "## Startup, restart, failure (`make bench`)", 1)
    others = [
        f"- [{title}](../{page}.md#{anchor})" for title, page, anchor in scoreboards_in_docs() if page != "scoreboards"
    ]
    return "\n".join(
        [
            "# Scoreboards\n",
            "Each is a table written by a program in this repository, with every round it measured.\n",
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
    """The headings in docs/ that contain the word scoreboard: (title of the page, page, anchor)."""
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
    parser = argparse.ArgumentParser(
        prog="python -m tools.reference", description="Generate the reference from the code."
    )
    parser.add_argument(
        "--to", type=Path, default=ROOT / "docs" / "reference", help="output directory (default: docs/reference)"
    )
    folder = parser.parse_args().to
    for name, text in pages().items():
        (folder / name).write_text(f"<!-- written by `python -m tools.reference` -->\n\n{text}", encoding="utf-8")
