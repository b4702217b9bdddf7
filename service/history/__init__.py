"""The service's history: recorded cycles, snapshots, and ended jobs as a workload."""
