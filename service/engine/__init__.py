"""The heart: facts in, one guarded plan out. No web framework, no database and no clock of its own."""
