"""Configuration files: where they are, which ones are trusted, and what they contain."""

from __future__ import annotations

from muster.config.config_files import ConfigFile
from muster.config.configuration import Configuration, Setting, read_configuration

__all__ = ["ConfigFile", "Configuration", "Setting", "read_configuration"]
