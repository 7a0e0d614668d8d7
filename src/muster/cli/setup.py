"""`muster setup`: what a person does once for their hosts."""

from __future__ import annotations

import argparse
import sys

from muster.api.arguments import Parser
from muster.errors import MusterError, UsageError

EXIT_LEFT = 1
"""Exit code when some host still does not let us in."""

HELP = """\
usage: muster setup ssh -H HOSTS [--between]

Log in to hosts without a password from now on, as `muster run` and `muster check` do.

It makes a key if you have none, shows you the keys of hosts that are new and keeps them when you say they are right,
puts your key on each host that does not have it (ssh itself asks for your password there, once), and tests each login.
Checking of host keys is never turned off.

options:
  -H HOSTS         name, user@name, gpu[01-04]
  --hostfile FILE  read hosts from a file, one per line
  --between        let the hosts log in to each other too, as mpirun needs on many hosts, and test every pair

examples:
  muster setup ssh -H gpu[01-04]
  muster setup ssh -H alice@box,ssh://bob@lab:2222
  muster setup ssh -H gpu[01-16] --between

Exit code: 0 when every host lets you in, 1 when some do not, 2 for a wrong command line.
"""


def main(argv: list[str]) -> int:
    """Set up what is asked for."""
    if not argv or argv[0] in ("-h", "--help", "help") or argv[1:] in (["-h"], ["--help"]):
        print(HELP, end="")
        return 0
    if argv[0] != "ssh":
        raise UsageError(f"there is nothing called `{argv[0]}` to set up", hint="`muster setup ssh -H host1,host2`")
    return ssh(argv[1:])


def ssh(argv: list[str]) -> int:
    """Set up logins over ssh."""
    from muster.engines.ssh.setup_ssh import SshSetup
    from muster.hosts import parse_hosts, read_hostfile

    p = Parser(prog="muster setup ssh", add_help=False)
    p.add_argument("-H", "--hosts")
    p.add_argument("--hostfile")
    p.add_argument("--between", action="store_true")
    options: argparse.Namespace = p.parse_args(argv)
    if (options.hosts is None) == (options.hostfile is None):
        raise UsageError("muster setup ssh: say which hosts", hint="`muster setup ssh -H host1,host2`")
    hosts = parse_hosts(options.hosts) if options.hosts is not None else read_hostfile(options.hostfile)
    setup = SshSetup(hosts, say=_say, ask=_ask)
    done = setup.run() and (not options.between or setup.run_between())
    return 0 if done else EXIT_LEFT


def _say(text: str) -> None:
    print(f"muster: {text}", file=sys.stderr)


def _ask(question: str) -> bool:
    """A question at the terminal, wherever stdin comes from."""
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            terminal.write(f"muster: {question} [y/N] ".encode())
            return terminal.readline().strip().lower() in (b"y", b"yes")
    except OSError:
        raise MusterError(f"nobody can be asked: {question}", hint="type this command at a terminal") from None
