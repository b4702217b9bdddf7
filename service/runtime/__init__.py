"""What the service's processes need of the operating system: a clock, memory, child processes with limits."""
