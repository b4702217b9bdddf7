"""Tests with real engines. They need root and Debian's packages: run them by ``make test-engines``."""
