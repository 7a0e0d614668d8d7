"""Benchmarks of Muster against torchrun and mpirun on this machine: `python -m benchmarks`."""
