"""What a policy remembers between two cycles: indexes of jobs, GPUs that are set aside, the starvation guard."""
