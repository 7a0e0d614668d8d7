# Makes plain mpirun and mpiexec those of Open MPI in a lab host, whatever the machine has chosen; sourced by its init.
# Without root /etc may be the machine's own, which this cannot change.
for program in mpirun mpiexec; do
  ln -sf "$(command -v "$program.openmpi")" "/etc/alternatives/$program" 2>/dev/null || true
done
