"""The order to dial: everything that an agent needs to connect to the controller, as JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

from muster.agent import dial_back
from muster.controller.links.certificate import derived
from muster.shared.wire import VERSION


def token_of(secret: str) -> str:
    """The token of agents that share a secret with the controller; only the holder of its certificate gets it."""
    return derived(secret, "token").hex()


def order_text(
    *,
    addresses: Sequence[str],
    port: int,
    certificate: str,
    token: str,
    key_from: Sequence[str],
    killed_at_once: bool = False,
    limit: float,
    is_patient: bool = False,
) -> str:
    """The order; `limit` is the number of seconds in which the agent must succeed.

    An agent that `is_patient` also dials again after the controller has rejected it, which may expect it later.
    """
    order: dial_back.Order = {
        "code": inspect.getsource(dial_back) + "\nenter(order, globals())\n",
        "addresses": addresses,
        "port": port,
        "certificate": certificate,
        "token": token,
        "key_from": key_from,
        "killed_at_once": killed_at_once,
        "limit": limit,
        "is_patient": is_patient,
        "protocol": VERSION,
    }
    return json.dumps(order)
