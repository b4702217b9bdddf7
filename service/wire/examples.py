"""Request bodies of the OpenAPI document. Real ones: a test submits every one of them."""

from typing import Any

JOB: dict[str, Any] = {
    "name": "gpt2-medium-pretrain",
    "project": "nlp",
    "user": None,
    "command": ["python", "train.py"],
    "env": {"LR": "0.1"},
    "working_dir": None,
    "graph": {
        "layers": [
            {
                "name": "embed",
                "forward_s": 0.004,
                "backward_s": 0.008,
                "parameter_bytes": 206000000,
                "activation_bytes": 33554432,
            },
            {
                "name": "block0",
                "forward_s": 0.006,
                "backward_s": 0.012,
                "parameter_bytes": 50400000,
                "activation_bytes": 33554432,
            },
        ],
        "edges": [["embed", "block0"]],
    },
    "parallelism": {"stages": 2, "replicas": [1, 1], "tensor": [1, 1], "schedule": "1f1b", "micro_batches": 8},
    "gpu_type": None,
    "declared_iterations": None,
    "walltime_s": None,
    "priority": 0,
    "checkpoint_period_s": 300,
    "max_retries": 2,
    "after": [],
    "hold": False,
    "labels": {},
}

CATALOGUE_JOB: dict[str, Any] = {
    "name": "resnet50-imagenet",
    "project": "vision",
    "command": ["python", "train.py", "--model", "resnet50"],
    "graph": {"model": "resnet50", "batch_size": 64},
    "gpus": 2,
    "preemption": {"signal": "SIGUSR1", "grace_s": 30},
}

PLAIN_JOB: dict[str, Any] = {
    "name": "digits",
    "command": ["python", "digits.py", "--epochs", "20"],
    "gpus": 1,
    "labels": {"team": "research"},
}

JOBS: dict[str, Any] = {"jobs": [PLAIN_JOB, CATALOGUE_JOB]}

SERVER: dict[str, Any] = {"name": "gpu-07", "gpus": 8, "gpu_type": "V100", "rack": "r1", "nic_gbps": 100}

PROGRESS: dict[str, Any] = {"iteration": 1200, "total_iterations": 5000, "checkpoint_iteration": 1000, "loss": 0.31}

KEY: dict[str, Any] = {"user": "ada", "role": "submitter", "projects": ["nlp"], "expires_in_s": 7_776_000}

RESERVATIONS: list[dict[str, Any]] = [
    {"servers": ["a"], "starts_at": "2026-01-02T08:00:00Z", "ends_at": "2026-01-02T10:00:00Z", "reason": "disks"},
    {"count": 1, "starts_at": "2026-01-03T08:00:00Z", "ends_at": "2026-01-03T10:00:00Z", "project": "nlp"},
]
