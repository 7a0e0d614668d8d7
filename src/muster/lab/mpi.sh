# Makes mpirun and mpiexec those of Open MPI on a lab host, whatever this machine uses; sourced by the host's init.
# Without root, /etc may be that of this machine, which cannot be changed here.
for program in mpirun mpiexec; do
  ln -sf "$(command -v "$program.openmpi")" "/etc/alternatives/$program" 2>/dev/null || true
done
