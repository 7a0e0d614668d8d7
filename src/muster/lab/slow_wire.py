"""A slow wire between two network interfaces, for kernels without netem: `python wire.py IF_A IF_B SECONDS`.

It runs in the switch's network namespace, forwards every frame from either interface to the other after SECONDS, and
ends when its stdin closes, that is when the lab ends or heals the cable. Standard library only: it is started as a
file, outside the package.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
"""Without this option a socket also receives what it sends, and frames would loop (Linux 4.20)."""

BATCH = 256
"""Maximum number of frames read from one side before the other gets its turn."""

LARGEST_FRAME = 65_600


def tap(interface: str) -> socket.socket:
    """A raw socket that receives every frame arriving at an interface, and sends through it."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def carry(first: socket.socket, second: socket.socket, delay: float, owner: int) -> None:
    """Forward frames both ways until the file descriptor `owner` becomes readable."""
    other = {first: second, second: first}
    # One queue for both directions: all frames have the same delay, so they are due in order of arrival.
    under_way: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        patience = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready = select.select([first, second, owner], [], [], patience)[0]
        if owner in ready:
            return
        for end in (end for end in other if end in ready):
            under_way.extend((time.monotonic() + delay, other[end], frame) for frame in waiting_frames(end))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, frame = under_way.popleft()
            try:
                end.send(frame)
            except OSError:
                pass  # the interface is down or its queue is full: the frame is lost, as on any wire


def waiting_frames(end: socket.socket) -> list[bytes]:
    """The frames that have arrived at one end, at most BATCH of them."""
    frames: list[bytes] = []
    try:
        while len(frames) < BATCH:
            frames.append(end.recv(LARGEST_FRAME))
    except OSError:
        pass  # no more frames for now, or the interface went down, which is reported once
    return frames


def main() -> None:
    """Open both interfaces, print `ready`, and forward frames."""
    first, second = tap(sys.argv[1]), tap(sys.argv[2])
    print("ready", flush=True)
    carry(first, second, float(sys.argv[3]), sys.stdin.fileno())


if __name__ == "__main__":
    main()
