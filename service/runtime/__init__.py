"""Access to the operating system: clocks, garbage collection, processes, child processes with limits, outgoing HTTP."""
