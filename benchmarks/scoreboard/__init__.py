"""Injects every failure of the catalog that can be detected before launch, and checks that `muster check` finds it."""
