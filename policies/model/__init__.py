"""The types that all packages share: frozen values, and read-only protocols over the engine's live records."""
