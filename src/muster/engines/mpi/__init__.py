"""The MPI engine: mpirun or mpiexec starts one agent per rank."""
