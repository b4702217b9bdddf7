"""The decision of one cycle: queue heads, preemption, reservations, the guard and explanations."""
