"""One machine or pod, as the user named it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine, how ssh reaches it and how many ranks it runs; `str(host)` writes it as `-H` reads it.

    It can also be a pod of Kubernetes, which kubectl reaches.
    """

    name: str
    """The name for ssh: a host name, an alias of the user's ssh config or an address (IPv6 without brackets).

    Of a pod, the name that is shown.
    """
    pod: str = ""
    """The full name of the pod; empty if it is a machine."""
    user: str | None = None
    """The user to log in as; None leaves it to ssh."""
    port: int | None = None
    """The port of sshd; None leaves it to ssh."""
    slots: int | None = None
    """Number of ranks on this host; None for one per GPU."""
    gpus: tuple[int, ...] | None = None
    """Exactly these GPUs, in this order, one rank each; None means the first `slots` of them."""
    tasks: int | None = None
    """Number of tasks the scheduler assigned here, used if the host has no GPU; not part of `-H` or `str`."""

    def __post_init__(self) -> None:
        if self.gpus is not None and self.slots != len(self.gpus):
            raise ValueError(f"{self.name}: {self.slots} slots for {len(self.gpus)} GPUs")

    @property
    def destination(self) -> str:
        """The destination argument of ssh: `user@name`, or `name` without a user."""
        return f"{self.user}@{self.name}" if self.user else self.name

    def __str__(self) -> str:
        text = f"pod/{self.pod}" if self.pod else f"[{self.name}]" if ":" in self.name else self.name
        if self.user:
            text = f"{self.user}@{text}"
        if self.port is not None:
            text = f"ssh://{text}:{self.port}"
        if self.gpus is not None:
            numbers = ",".join(map(str, self.gpus))
            # `box:3` is three ranks, so a list of one GPU keeps its brackets.
            text += f":{numbers}" if len(self.gpus) > 1 else f":[{numbers}]"
        elif self.slots is not None:
            text += f":{self.slots}"
        return text
