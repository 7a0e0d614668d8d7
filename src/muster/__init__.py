"""Muster runs an unmodified PyTorch script on every GPU you have."""

from __future__ import annotations

__version__ = "0.1.0"
