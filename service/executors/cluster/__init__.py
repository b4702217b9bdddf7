"""Attempts on the servers of a cluster whose engine (Slurm, Ray) starts them; placement and order are decided here."""
