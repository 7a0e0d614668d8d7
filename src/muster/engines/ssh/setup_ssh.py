"""`muster setup ssh`: sets up logins without a password and tests them, with the user's own ssh."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from muster.engines.ssh.engine import explain_ssh_failure
from muster.engines.ssh.ssh_config import SshConfig, read_config
from muster.errors import HostError, MusterError
from muster.hosts import Host

_CONNECT = "-oConnectTimeout=5"
_CALL_LIMIT = 30.0
"""Timeout of one ssh command in seconds."""

_AT_ONCE = 16
"""Number of simultaneous logins."""

_TAKE_KEY = (
    "exec sh -c 'cd && umask 077 && mkdir -p .ssh && "
    '{ [ -z "$(tail -c1 .ssh/authorized_keys 2>/dev/null)" ] || echo >> .ssh/authorized_keys; } && '
    "cat >> .ssh/authorized_keys'"
)
"""Runs on the host with a public key on stdin; adds a missing newline at the end of the file first."""

_MAKE_KEY = (
    "exec sh -c 'cd && umask 077 && mkdir -p .ssh && "
    '{ [ -f .ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N "" -f .ssh/id_ed25519; } && cat .ssh/id_ed25519.pub\''
)

_KEY_MARK = "key: "
"""Prefix of lines for authorized_keys in the input of _TAKE_LINES."""

_TAKE_LINES = (
    "exec sh -c 'cd && umask 077 && touch .ssh/authorized_keys .ssh/known_hosts && while read -r line; do "
    'case $line in "key: "*) file=authorized_keys line=${line#key: } ;; *) file=known_hosts ;; esac; '
    'grep -qxF "$line" .ssh/$file || echo "$line" >> .ssh/$file; done\''
)
"""Runs on the host with lines for authorized_keys and known_hosts on stdin; adds those that are missing."""


class SshSetup:
    """Sets up logins from this machine to hosts."""

    def __init__(self, hosts: Sequence[Host], *, say: Callable[[str], None], ask: Callable[[str], bool]) -> None:
        self.hosts = hosts
        self.say = say
        self.ask = ask

    def run(self) -> bool:
        """Set up what is missing, print the state of each host, and return whether all logins work."""
        states = self.try_all()
        unknown = [host for host in self.hosts if _kind(states[host]) == "unknown-key"]
        if unknown:
            self.record_keys(unknown)
            states = self.try_all()
        refused = [host for host in self.hosts if _kind(states[host]) == "denied"]
        key = self.own_key(refused[0]) if refused else ""
        asking = [host for host in refused if _takes_password(states[host])]
        if asking:
            for host in asking:
                self.send_key(host, key)
            states = self.try_all()
        for host in self.hosts:
            error = states[host]
            works = f"{host.name}: login without a password works"
            self.say(works if error is None else self._explain(host, error, key))
        return all(error is None for error in states.values())

    def try_all(self) -> dict[Host, HostError | None]:
        """Log in to every host without prompts; return the error of each host, or None."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(self.hosts, pool.map(_log_in, self.hosts), strict=True))

    def run_between(self) -> bool:
        """Set up logins between the hosts as well, and return whether every pair works."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            keys = list(pool.map(_key_of, self.hosts))
            known = [_known_line(host) for host in self.hosts]
            text = "".join(f"{_KEY_MARK}{key}\n" for key in keys) + "".join(f"{line}\n" for line in known if line)
            commands = [[*_batch(host), _TAKE_LINES] for host in self.hosts]
            list(pool.map(_checked, commands, [host.name for host in self.hosts], [text] * len(commands)))
            pairs = [(a, b) for a in self.hosts for b in self.hosts if a is not b]
            errors = list(pool.map(_log_in, [b for _, b in pairs], [a for a, _ in pairs]))
        for pair, error in zip(pairs, errors, strict=True):
            if error is not None:
                self.say(f"{pair[0].name} cannot log in to {error.message}")
        if not any(errors):
            self.say(f"the hosts can log in to each other ({len(pairs)} pairs tested)")
        return not any(errors)

    # --- host keys ------------------------------------------------------------------------------------------

    def record_keys(self, hosts: Sequence[Host]) -> None:
        """Show the fingerprints of unknown host keys, and add them to known_hosts if the user accepts them."""
        with tempfile.TemporaryDirectory(prefix="muster-setup-") as folder:
            fetched: dict[Host, str] = {}
            self.say("these host keys are not in your known_hosts file:")
            for number, host in enumerate(hosts):
                path = os.path.join(folder, str(number))
                text = _fetch_key(host, path)
                if not text:
                    self.say(f"  {host.name}: could not fetch its host key")
                    continue
                fetched[host] = text
                self.say(f"  {host.name}: {_fingerprint(path)}")
        if not fetched:
            return
        self.say("compare them with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on each host's console")
        if not self.ask("Trust these host keys?"):
            raise MusterError(
                "the host keys were not accepted, so nothing was set up",
                hint="compare the fingerprints on each host's console, then run this command again",
            )
        for host, text in fetched.items():
            _append(_config(host).known_hosts, text)

    # --- the user's key -------------------------------------------------------------------------------------

    def own_key(self, host: Host) -> str:
        """The public key that ssh would offer; creates one if there is none."""
        config = _config(host)
        for path in config.keys:
            public = Path(f"{path}.pub")
            if public.exists():
                return public.read_text()
        agent = _run(["ssh-add", "-L"])
        if agent.returncode == 0 and agent.stdout.strip():
            return agent.stdout.splitlines()[0] + "\n"
        path = Path(os.path.expanduser("~/.ssh/id_ed25519"))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            self.say(f"you have no ssh key yet; creating {path}")
            _checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], "could not create an ssh key")
        else:
            public_key = _checked(["ssh-keygen", "-y", "-f", str(path)], f"could not get the public key of {path}")
            Path(f"{path}.pub").write_text(public_key)
        return Path(f"{path}.pub").read_text()

    def send_key(self, host: Host, key: str) -> None:
        """Install the user's key on a host; ssh itself asks for the password on the terminal."""
        self.say(f"{host.name}: installing your key; ssh asks for your password on that host")
        done = subprocess.run(
            [*_login(host), "-oStrictHostKeyChecking=yes", "-T", _CONNECT, host.destination, _TAKE_KEY],
            input=key.encode(),
            check=False,
        )
        if done.returncode:
            self.say(f"{host.name}: could not install your key")

    def _explain(self, host: Host, error: HostError, key: str) -> str:
        if error.kind == "changed-key":
            name = _config(host).recorded_as
            return f"{error.message}\n  if you expected this, run `ssh-keygen -R '{name}'`, then this command again"
        if error.kind == "denied" and self._locked(host):
            return f"{host.name}: your key has a passphrase; run `eval $(ssh-agent) && ssh-add` first"
        if error.kind == "denied":
            add = f"add this line to its ~/.ssh/authorized_keys:\n  {key.strip()}"
            if _takes_password(error):
                return f"{error.message}\n  run this command again, or {add}"
            return f"{host.name} does not accept passwords; {add}"
        return error.message + (f"\n  {error.hint}" if error.hint else "")

    def _locked(self, host: Host) -> bool:
        """Whether the key that ssh would offer needs a passphrase."""
        keys = [path for path in _config(host).keys if os.path.exists(path)]
        return bool(keys) and _run(["ssh-keygen", "-y", "-P", "", "-f", keys[0]]).returncode != 0


def _kind(error: HostError | None) -> str:
    return error.kind if error else ""


def _takes_password(error: HostError | None) -> bool:
    """Whether a host that denied a login would accept a password, by the list of methods that ssh prints."""
    listed = re.search(r"Permission denied \(([\w,-]+)\)", error.message if error else "")
    return listed is None or not {"password", "keyboard-interactive"}.isdisjoint(listed[1].split(","))


def _login(host: Host) -> list[str]:
    return ["ssh", *(["-p", str(host.port)] if host.port else [])]


def _batch(host: Host) -> list[str]:
    return [*_login(host), "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", _CONNECT, host.destination]


def _log_in(host: Host, via: Host | None = None) -> HostError | None:
    """Log in to a host from here, or from the host `via`; return the error, or None."""
    login = [*_batch(host), "true"]
    done = _run(login if via is None else [*_batch(via), shlex.join(login)])
    return None if done.returncode == 0 else explain_ssh_failure(host, done.returncode, done.stderr)


def _key_of(host: Host) -> str:
    """The user's public key on a host; creates one if there is none."""
    return _checked([*_batch(host), _MAKE_KEY], f"{host.name}: could not create an ssh key").strip()


def _known_line(host: Host) -> str:
    """The known_hosts line of a host, under the name that the other hosts will use."""
    config = _config(host)
    found = _run(["ssh-keygen", "-F", config.recorded_as, "-f", config.known_hosts]).stdout.splitlines()
    lines = [line.split() for line in found if line.strip() and not line.startswith("#")]
    name = host.name if host.port in (None, 22) else f"[{host.name}]:{host.port}"
    return f"{name} {lines[0][1]} {lines[0][2]}" if lines else ""


def _fetch_key(host: Host, path: str) -> str:
    """Fetch a host's key as ssh would write it to known_hosts, through jump hosts if necessary.

    It is written to a separate file, and no credentials are offered to the host, so an impostor learns nothing.
    """
    keep = [f"-oUserKnownHostsFile={path}", "-oGlobalKnownHostsFile=/dev/null", "-oStrictHostKeyChecking=accept-new"]
    _run(
        [*_login(host), "-oBatchMode=yes", *keep, "-oPreferredAuthentications=none", _CONNECT, host.destination, "true"]
    )
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _fingerprint(path: str) -> str:
    words = _run(["ssh-keygen", "-lf", path]).stdout.split()
    return f"{words[-1].strip('()')} {words[1]}" if len(words) > 2 else "unreadable"


def _config(host: Host) -> SshConfig:
    return read_config(_checked([*_login(host), "-G", host.destination], "could not read the ssh configuration"))


def _append(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    old = file.read_text() if file.exists() else ""
    with file.open("a") as known:
        known.write(("\n" if old and not old.endswith("\n") else "") + text)
    if not old:
        file.chmod(0o600)


def _run(argv: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_CALL_LIMIT, check=False)
    except FileNotFoundError:
        raise MusterError(f"`{argv[0]}` not found on this machine", hint="install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(argv), 255, "", "timed out")


def _checked(argv: Sequence[str], what: str, text: str = "") -> str:
    done = _run(argv, text)
    if done.returncode:
        raise MusterError(f"{what}: {done.stderr.strip()}")
    return done.stdout
