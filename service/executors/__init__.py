"""Executors run the attempts of jobs. They implement the executor ports of the engine."""
