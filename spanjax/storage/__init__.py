"""Output files and folders of commands: written whole or not at all, and never over those of somebody else."""
