"""Slurm's commands: how they are called and what they answer. Knows nothing of scheduling."""
