"""Training under a real SLURM, several nodes on the loopback of one machine, and under a real mpirun."""
