"""Workloads: the table ``sooner.workload/1``, importers of public trace formats, and a seeded generator."""
