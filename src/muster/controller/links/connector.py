"""What brings the agents of a launch up: over pipes, or by a port that they dial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from muster.controller.links.dialed import DialledConnector
from muster.controller.links.piped import PipedConnector
from muster.engines.engine import Launch

_CONNECTORS = {"pipes": PipedConnector, "dial-back": DialledConnector}


def make_connector(
    launch: Launch, folder: Path, on_text: Callable[[str, str], None]
) -> PipedConnector | DialledConnector:
    """The connector for the channel of a launch; `folder` is the job's."""
    return _CONNECTORS[launch.channel](launch, folder, on_text)
