"""The heart: requests in, one guarded plan out. No web framework, no database and no clock of its own."""
