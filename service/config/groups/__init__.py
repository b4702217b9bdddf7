"""Every setting and limit: name (unit last), default, bounds and the reason for them, a file for each group."""
