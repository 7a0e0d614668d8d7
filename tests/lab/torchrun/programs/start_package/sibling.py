"""Found by a relative import."""

WORD = "found"
