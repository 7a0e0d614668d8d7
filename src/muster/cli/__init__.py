"""The `muster` command: runs a subcommand and prints errors; loads only the module of that subcommand."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import re
import shlex
import sys
from importlib import import_module

from muster.errors import EXIT_MUSTER, EXIT_USAGE, MusterError, RemoteJob, with_hint

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module with `main(argv) -> exit code`, one line for --help)
    "run": ("muster.cli.run", "Run a PyTorch script on this machine or on many hosts"),
    "again": ("muster.cli.again", "Repeat a job with the same command, hosts and directory"),
    "keep": ("muster.cli.keep", "List, make or end hosts that stay ready for the next run"),
    "ps": ("muster.cli.ps", "List running and finished jobs"),
    "show": ("muster.cli.show", "Show why a job failed or hangs, with tracebacks and a timeline"),
    "logs": ("muster.cli.logs", "Print or follow the output of a job's ranks"),
    "top": ("muster.cli.top", "Monitor a job in the terminal: hosts, ranks, speed, GPUs, hangs"),
    "dashboard": ("muster.cli.dashboard", "Serve the dashboard of a job for a browser"),
    "attach": ("muster.cli.attach", "Show the output of a running job; Ctrl-C detaches"),
    "stop": ("muster.cli.stop", "Stop a job on all its hosts"),
    "drain": ("muster.cli.drain", "Move a job away from a host that is about to go away"),
    "check": ("muster.cli.check", "Check hosts for problems before a run"),
    "setup": ("muster.cli.setup", "Set up ssh logins without a password"),
    "bench": ("muster.cli.bench", "Benchmark collectives and links, and how a script scales"),
    "submit": ("muster.cli.submit", "Write or submit a batch job for Slurm, PBS or Kubernetes"),
    "config": ("muster.cli.config", "Show the options in effect and where they come from"),
    "recipes": ("muster.cli.recipes", "List the training recipes, or copy one to start from"),
    "completion": ("muster.cli.completion", "Print a completion script for bash, zsh or fish"),
    "lab": ("muster.cli.lab", "Run virtual hosts on this machine, with fault injection"),
}

ALIASES = {"page": "dashboard"}
"""Former names of commands, which still work."""

_WITH_SUBCOMMANDS = ("lab", "recipes", "setup")

HELP = """\
usage: muster COMMAND [options]

One command runs an unmodified torchrun or DDP script on every GPU you have.

commands:
{commands}

examples:
  muster run train.py --lr 0.1                      every GPU of this machine
  muster run -H gpu[01-04]:8,box:2 train.py         five hosts over ssh
  muster run --lab 2 --nproc 2 -m muster.recipes.hello

`muster COMMAND --help` describes a command and its options.
"""


_GARBAGE = 20_000
"""New objects after which Python looks for garbage; its own 700 take each command 10 ms of CPU while it imports."""


def main(argv: list[str] | None = None) -> int:
    """Run one muster command and return its exit code."""
    args = sys.argv[1:] if argv is None else argv
    gc.set_threshold(_GARBAGE)
    if argv is None:  # Python's last garbage collection would take 25 ms of CPU for all that was imported
        atexit.register(gc.freeze)
    _open_all_three()
    _print_anything()
    try:
        code = _dispatch(args)
        sys.stdout.flush()  # here, where an error is one sentence
        return code
    except MusterError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has exited (`muster recipes | head -1`); Python would report it again at exit.
        _drop_output()
        return 141
    except Exception as error:
        print_error(_for_the_user(error))
        return EXIT_MUSTER
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()


def _for_the_user(error: Exception) -> MusterError:
    """Describe what the user's files and limits can cause anywhere; everything else is an internal error."""
    why = (error.strerror or "").lower() if isinstance(error, OSError) else ""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return MusterError("out of memory", hint="use less of it, or raise the limit: `ulimit -v` shows it")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return MusterError(f"too many open files ({why})", hint="raise the limit, for example with `ulimit -n 4096`")
    if isinstance(error, OSError) and error.filename is not None:
        return MusterError(f"{os.fsdecode(error.filename)}: {why}")
    if isinstance(error, FileNotFoundError | PermissionError):
        return MusterError(f"the working directory: {why}", hint="change to another directory: cd ~")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return MusterError(f"the output: {why}")
    from muster.controller.debug_log import internal_error

    return MusterError(internal_error(error))


def _drop_output(descriptor: int = 1) -> None:
    """Discard what stdout or stderr still holds, which Python would try to write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _print_anything() -> None:
    """Print names that are not valid in the terminal's encoding escaped, instead of failing."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        reconfigure(errors="backslashreplace")


def _open_all_three() -> None:
    """Open the standard streams that the caller closed (`<&-`), so that no pipe of ours gets their descriptors."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if descriptor == 0 else "w", closefd=False))


def _dispatch(args: list[str]) -> int:
    if len(args) > 1 and args[0] == "help":  # `muster help lab up` is `muster lab up --help`
        words = 2 if args[1] in _WITH_SUBCOMMANDS else 1  # `muster run train.py --help` would run train.py
        return _dispatch([*args[1 : 1 + words], "--help"])
    if not args or args[0] in ("-h", "--help", "help"):
        width = max(len(name) for name in COMMANDS)
        lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
        print(HELP.format(commands="\n".join(lines)), end="")
        return 0
    if args[0] in ("-V", "--version"):
        from muster import __version__

        print(f"muster {__version__}")
        return 0
    name, rest = ALIASES.get(args[0], args[0]), args[1:]
    if name not in COMMANDS:
        return _unknown(name, rest)
    try:
        return import_module(COMMANDS[name][0]).main(rest)
    except RemoteJob as job:
        from muster.cli.remote_commands import forward

        return forward(name, rest, job.folder)


def _unknown(name: str, rest: list[str]) -> int:
    from difflib import get_close_matches

    from muster.api.hints import COMMAND_MEANINGS, nearest

    if name.startswith("-") and rest:
        at = next((position for position, word in enumerate(rest) if word in COMMANDS), None)
        command, after = ("run", rest) if at is None else (rest[at], rest[:at] + rest[at + 1 :])
        meant = shlex.join(["muster", command, name, *after])
        print_error(MusterError(f"{name} comes before the command", hint=f"options follow the command: `{meant}`"))
        return EXIT_USAGE
    names = (*COMMANDS, "--version", "--help")
    near = nearest(name, names, COMMAND_MEANINGS) or next(iter(get_close_matches(name, COMMANDS, 1)), "")
    if name in ("torchrun", "python", "python3"):
        hint = f"did you mean `{shlex.join(['muster', 'run', name, *rest])}`?"
    elif name.endswith(".py"):
        hint = f"run a script with `{shlex.join(['muster', 'run', name, *rest])}`"
    elif near:
        hint = f"did you mean `muster {near}`?"
    else:
        hint = "`muster --help` lists the commands"
    what = "option" if name.startswith("-") else "command"
    print_error(MusterError(f"unknown {what} `{name}`", hint=hint))
    return EXIT_USAGE


def _shown(text: str) -> str:
    """Return a text of an error without control characters, and with very long words and lines shortened."""
    from muster.text import printable_lines

    text = re.sub(r"(\S{200})\S{200,}(\S{20})", r"\1…\2", printable_lines(text))
    return re.sub(r"(?m)^(.{1500}).{500,}$", r"\1…", text)


def print_error(error: MusterError) -> None:
    """Print `error:` and, after a blank line, `hint:` to stderr."""
    from muster.output.colors import ADVICE, FAILURE, painted, wants_color

    message, advice = _shown(error.message), _shown(error.hint or "")  # they may quote a host, or a whole file
    text = f"error: {with_hint(message, advice)}\n"
    if wants_color(sys.stderr.isatty()):
        hint = f"\n\n{painted('hint:', ADVICE)} {advice}" if advice else ""
        text = f"{painted('error:', FAILURE)} {message}{hint}\n"
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # a full disk or a closed pipe must not change the exit code
        _drop_output(2)
