"""What makes jobs run: each module implements the executor port of the engine."""
