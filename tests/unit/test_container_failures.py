"""Containers that cannot be: what is refused beforehand, and what the words of each program mean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from container_host import IMAGE, Host, box

from muster.cli.run import main as muster_run
from muster.engines.container.container import Container, explain_container_failure, pull_in
from muster.errors import HostError, UsageError

# --- what cannot be -------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="containers run on Linux hosts")
def test_a_folder_that_the_host_does_not_have_is_named(tmp_path: Path):
    host = Host(tmp_path, "podman")
    done = host.run(box("/no/such folder"))
    assert host.called() == []
    error = explain_container_failure("h2", box(), done.returncode, done.stderr)
    assert error.message == "h2: could not mount the working directory /no/such folder: it does not exist there"
    assert error.hint == "use `--sync` to send the working directory to every host first"


@pytest.mark.parametrize("image", ["", "-it", "--rm"])
def test_what_cannot_be_an_image_is_refused(image: str):
    with pytest.raises(UsageError, match="is not an image name"):
        Container(image=image)


@pytest.mark.parametrize("word", ["-t", "-it", "-ti", "-d", "-dit", "--tty", "--detach", "--detach=true"])
def test_options_that_take_the_channel_away_are_refused(word: str):
    with pytest.raises(UsageError, match="would cut the connection to the agent"):
        Container(image=IMAGE, args=("--rm", word))


def test_options_that_only_look_alike_are_not():
    Container(image=IMAGE, args=("-i", "--detach-keys=x", "--tty=false", "--device", "/dev/x", "-vdit:/x"))


def test_an_argument_that_would_be_taken_for_the_image_is_refused():
    with pytest.raises(UsageError, match="`/data:/data` is not an option"):
        Container(image=IMAGE, args=("/data:/data",))


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc", "/var"])
def test_a_folder_every_image_has_cannot_be_the_working_directory(folder: str):
    with pytest.raises(UsageError, match="would hide the image's own"):
        Container(image=IMAGE, cwd=folder)


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        (["--container", "podman"], "--container needs --image", "--image IMAGE"),
        (["--container-args", "-v a:b"], "--container-args needs --image", "--image IMAGE"),
        (["--image=-it"], "`-it` is not an image name", "--image"),
        (["--image", IMAGE, "--container-args", '-v "/a'], "no closing quotation", ""),
    ],
)
def test_a_wrong_command_line_is_refused(
    options: list[str], error: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError) as refused:
        muster_run(["--dry-run", "--nproc", "1", *options, "train.py"])
    assert error in refused.value.message
    assert hint in str(refused.value.hint)


# Words of podman 4.3.1 and docker 20.10.24, as seen, and of apptainer 1.3, as documented.
FAILURES = [
    ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "the Docker daemon is not running"),
    (
        "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
        'Get "http://%2Fvar%2Frun%2Fdocker.sock/info": dial unix /var/run/docker.sock: connect: permission denied',
        "docker denied access",
    ),
    (
        "docker: Error response from daemon: could not select device driver "
        '"" with capabilities: [[gpu]].\nmuster: h2: docker exited with code 125',
        "docker cannot pass GPUs",
    ),
    (
        'Error: short-name "pytorch" did not resolve to an alias and no unqualified-search registries are defined in '
        '"/etc/containers/registries.conf"\nmuster: h2: podman could not pull pytorch',
        "does not know its registry",
    ),
    (
        "Error response from daemon: pull access denied for nosuch, repository does not exist or may require "
        "'docker login': denied: requested access to the resource is denied\nmuster: h2: docker could not pull nosuch",
        "the registry denied access",
    ),
    ("Error: localhost/nosuch: image not known\nmuster: h2: podman exited with code 125", "not found"),
    ("FATAL:   could not open image /w/x.sif: no such file or directory", "apptainer could not find the image"),
    (
        "Error: crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime attempted "
        "to invoke a command that was not found\nmuster: h2: podman exited with code 127",
        "Python not found in",
    ),
    (
        "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create "
        'failed: unable to start container process: exec: "python3": executable file not found in $PATH: unknown.',
        "Python not found in",
    ),
    (
        'FATAL:   "python3": executable file not found in $PATH',
        "Python not found in",
    ),
    ("muster: Python 3.9 or newer is required, this is 3.6", "Python 3.9 or newer is required, this is 3.6 in"),
    ("muster: h2: could not create directory /home/a/.local/state/muster/jobs/x", "could not create directory"),
]


@pytest.mark.parametrize(("words", "meaning"), FAILURES)
def test_the_words_of_a_program_are_explained_with_what_to_do(words: str, meaning: str):
    error = explain_container_failure("h2", box(), 125, f"WARN[0000] something else\n{words}\n")
    assert isinstance(error, HostError)
    assert error.message.startswith("h2: ")
    assert meaning in error.message
    assert error.hint
    assert "{" not in error.message + error.hint


def test_words_nobody_knows_are_shown_as_they_are():
    error = explain_container_failure("h2", box(), 1, "a\nsomething new")
    assert error.message == f"h2: the agent did not start in {IMAGE}: something new"


def test_ordinary_words_announce_no_pull():
    assert pull_in("h2 is pulling docker.io/x:1\n") == ("h2", "docker.io/x:1")
    assert pull_in("Trying to pull docker.io/x:1...") is None
    assert pull_in("Copying blob sha256:1") is None
