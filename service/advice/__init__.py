"""Advice for a cluster that Slurm schedules: what Sooner predicts and would do there. It does not run jobs."""
