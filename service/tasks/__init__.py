"""APScheduler wiring: when the engine, the trainer, the reaper and the pruner run."""
