"""The state of a policy between two cycles: indexes of jobs, reserved GPUs, the starvation guard."""
