"""MPI: mpirun or mpiexec starts one agent per rank."""
