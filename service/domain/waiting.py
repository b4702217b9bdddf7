"""Which queued jobs wait for GPUs."""

from policies.model.reasons import Reason

NOT_WAITING_FOR_GPUS = frozenset({Reason.HELD, Reason.DEPENDENCY, Reason.RETRY_BACKOFF})
"""Reasons of queued jobs whose wait says nothing about the cluster."""
