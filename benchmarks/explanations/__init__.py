"""Injects every failure of the catalog that ends a running job, and checks how `muster run` explains it."""
