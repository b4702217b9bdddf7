"""Rules that limit where a job may run and when a running job may be stopped."""
