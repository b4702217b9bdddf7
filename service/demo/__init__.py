"""``sooner demo``: real training jobs through the whole service on this machine, and what came of it."""
