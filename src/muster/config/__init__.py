"""Configuration files: where they are, which ones are trusted, and what they contain."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.config.config_search import find

if TYPE_CHECKING:
    from muster.config.configuration import Configuration
    from muster.hosts import Group


def read_configuration(cwd: str | None = None, env: Mapping[str, str] | None = None) -> Configuration | None:
    """Read the configuration files for a working directory (default: of this process); None if there are none."""
    here = cwd or os.getcwd()
    found = find(here, os.environ if env is None else env)
    if not found:
        return None
    from muster.config.config_file import parse_file
    from muster.config.configuration import Configuration

    return Configuration(files=tuple(parse_file(path, data, here) for path, data in found))


def host_groups(config: Configuration | None) -> Mapping[str, Group]:
    """Return the host groups by name, without `@`."""
    return config.groups if config is not None else {}


def host_pythons(config: Configuration | None) -> dict[str, str]:
    """Return the Python of each host that has one of its own, by the host's name."""
    return {host: str(setting.value) for host, setting in config.pythons.items()} if config is not None else {}
