"""Proof that both ends of a new connection belong to the same job: each knows the secret of the session."""

from __future__ import annotations


def proof(secret: str, who: str, nonces: tuple[str, str], got: int) -> str:
    """What only `who` ("agent" or "controller") can say in answer to these nonces, about the lines it has got."""
    import hmac  # here, because few connections break

    return hmac.new(secret.encode(), f"{who} {nonces[0]} {nonces[1]} {got}".encode(), "sha256").hexdigest()


def is_proof(given: str, secret: str, who: str, nonces: tuple[str, str], got: int) -> bool:
    """Whether `who` has said this."""
    import hmac

    return hmac.compare_digest(given.encode(errors="replace"), proof(secret, who, nonces, got).encode())
