"""`muster completion`: prints the completion script of a shell."""

from __future__ import annotations

import os
import sys

from muster.api.arguments import Parser
from muster.errors import UsageError

EPILOG = """\
examples:
  source <(muster completion bash)                                           this shell only
  muster completion bash > ~/.local/share/bash-completion/completions/muster every new bash
  muster completion zsh > ~/.zfunc/_muster                                   with fpath+=~/.zfunc before compinit
  muster completion fish > ~/.config/fish/completions/muster.fish            every new fish

The scripts complete commands, options, their values, files, jobs, hosts of ~/.ssh/config and host groups. They start no
Python. Write them again after an update of Muster.

Exit code: 0; 2 for a wrong command line.
"""

_LINES = {
    "bash": "source <(muster completion bash)",
    "zsh": "source <(muster completion zsh)",
    "fish": "muster completion fish | source",
}
"""What to type in each shell."""


def main(argv: list[str]) -> int:
    """Print the script."""
    p = Parser(
        prog="muster completion",
        usage="muster completion SHELL",
        description="Print the completion script of a shell.",
        epilog=EPILOG,
    )
    p.add_argument("shell", nargs="?", choices=tuple(_LINES), metavar="SHELL", help="bash, zsh or fish")
    shell: str | None = p.parse_args(argv).shell
    if shell is None:
        line = _LINES.get(os.path.basename(os.environ.get("SHELL", "")))
        only = f"for this shell only: `{line}`; for every new one: " if line else ""
        raise UsageError("no shell given: bash, zsh or fish", hint=f"{only}see `muster completion --help`")
    from muster.cli.command_table import command_table

    table = command_table()
    if shell == "bash":
        from muster.cli.completion_bash import bash_script as script
    elif shell == "zsh":
        from muster.cli.completion_zsh import zsh_script as script
    else:
        from muster.cli.completion_fish import fish_script as script
    sys.stdout.write(script(table))
    return 0
