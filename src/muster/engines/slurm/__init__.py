"""The Slurm engine: srun inside an allocation, salloc and sbatch for a new one."""
