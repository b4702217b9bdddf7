"""``sooner demo``: real training jobs run by the whole service on this machine, and a summary of the results."""
