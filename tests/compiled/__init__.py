"""Tests of the compiled modules: ``make test-compiled``."""
