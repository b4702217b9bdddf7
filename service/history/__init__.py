"""The service's own past: recorded cycles, snapshots, and ended jobs as a workload."""
