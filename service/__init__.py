"""Running: the engine, its ports and their implementations, and every surface that a person touches."""
