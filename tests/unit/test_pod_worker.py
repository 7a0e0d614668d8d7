"""The other pods of a Kubernetes Job."""

from __future__ import annotations

from muster.cli.pod_worker import _reach  # pyright: ignore[reportPrivateUsage]


def test_an_address_that_is_no_name_is_reported_like_one_that_does_not_resolve() -> None:
    found, why = _reach("train-0..train", 29430)
    assert not found
    assert "does not resolve" in why
