"""What Muster costs, measured beside torchrun and mpirun on the machine at hand: `python -m benchmarks`."""
