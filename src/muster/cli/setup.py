"""`muster setup`: one-time setup of hosts."""

from __future__ import annotations

import argparse
import sys

from muster.api.arguments import Parser
from muster.errors import MusterError, UsageError
from muster.output.escapes import clean_for

EXIT_LEFT = 1
"""Exit code if some host still does not accept the login."""

HELP = """\
usage: muster setup ssh -H HOSTS [--between]

Set up ssh logins without a password, as `muster run` and `muster check` need them.

Creates an ssh key if you have none, shows the host keys of new hosts and stores them if you confirm, copies your public
key to each host that lacks it (ssh asks for your password on that host, once), and tests each login.
Host key checking is never disabled.

options:
  -H HOSTS         name, user@name, gpu[01-04], @group
  --hostfile FILE  read hosts from FILE, one per line
  --between        also set up and test logins between all pairs of hosts, as mpirun needs on many hosts

examples:
  muster setup ssh -H gpu[01-04]
  muster setup ssh -H alice@box,ssh://bob@lab:2222
  muster setup ssh -H gpu[01-16] --between

Exit code: 0 if all logins work, 1 if some do not, 2 for a wrong command line.
"""


def main(argv: list[str]) -> int:
    """Run the requested setup and return the exit code."""
    if not argv or argv[0] in ("-h", "--help", "help") or argv[1:] in (["-h"], ["--help"]):
        print(HELP, end="")
        return 0
    if argv[0] != "ssh":
        raise UsageError(f"muster setup: unknown command `{argv[0]}`", hint="`muster setup ssh -H host1,host2`")
    return ssh(argv[1:])


def ssh(argv: list[str]) -> int:
    """Set up logins over ssh."""
    from muster.config import host_groups, read_configuration
    from muster.engines.ssh.setup_ssh import SshSetup
    from muster.hosts import parse_hosts, read_hostfile

    p = Parser(prog="muster setup ssh", add_help=False)
    p.add_argument("-H", "--hosts")
    p.add_argument("--hostfile")
    p.add_argument("--between", action="store_true")
    options: argparse.Namespace = p.parse_args(argv)
    if (options.hosts is None) == (options.hostfile is None):
        raise UsageError("muster setup ssh: give -H or --hostfile", hint="`muster setup ssh -H host1,host2`")
    if options.hosts is not None:
        hosts = parse_hosts(options.hosts, groups=host_groups(read_configuration()))
    else:
        hosts = read_hostfile(options.hostfile)
    setup = SshSetup(hosts, say=_say, ask=_ask)
    done = setup.run() and (not options.between or setup.run_between())
    return 0 if done else EXIT_LEFT


def _say(text: str) -> None:
    print(clean_for(sys.stderr, f"muster: {text}"), file=sys.stderr)


def _ask(question: str) -> bool:
    """Ask at the terminal, even if stdin is redirected."""
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            terminal.write(f"muster: {question} [y/N] ".encode())
            return terminal.readline().strip().lower() in (b"y", b"yes")
    except OSError:
        raise MusterError(f"no terminal to ask: {question}", hint="run this command in a terminal") from None
