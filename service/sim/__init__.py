"""The production engine with its ports swapped: virtual time, simulated jobs, workloads from files."""
