"""PyTorch and libraries with models in an environment of their own, and the DDP example under torchrun with its losses."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-torch"
PYTHON = ENVIRONMENT / "bin" / "python"
PACKAGES = ("torch==2.13.0", "numpy>=2,<3")
"""pip takes a wheel for CPUs alone from a configured folder (``find-links``), else the one of PyPI."""
MODELS = (
    ("--require-hashes", "--no-deps", "-r", str(ROOT / "requirements-torch.lock")),
    ("--no-deps", "torchvision==0.28.0"),
)
"""Arguments of pip for the libraries with models. They stay beside whichever torch there is."""
PROGRAM = ROOT / "examples" / "train_ddp_torch.py"
TORCHRUN = (
    f'exec {PYTHON} -m torch.distributed.run --nnodes="$NNODES" --node-rank="$NODE_RANK" '
    '--nproc-per-node="$SOONER_GPUS_ON_SERVER" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"'
)


def missing() -> str:
    """What the tests lack; empty if nothing."""
    return "" if PYTHON.exists() and _imports() else f"PyTorch is missing in {ENVIRONMENT}: run make test-engines"


def install() -> None:
    """Make the environment. Raises RuntimeError with the command that failed."""
    for command in (
        [sys.executable, "-m", "venv", str(ENVIRONMENT)],
        *([str(PYTHON), "-m", "pip", "install", "--quiet", *arguments] for arguments in (PACKAGES, *MODELS)),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


def _imports() -> bool:
    names = ("onnx", "onnxscript", "torch", "torchvision", "transformers")
    program = f"from importlib.metadata import version; import torch.distributed; [version(name) for name in {names}]"
    return subprocess.run([PYTHON, "-c", program], capture_output=True, check=False).returncode == 0


def torchrun(*arguments: str) -> tuple[str, ...]:
    """The command of a job that runs the example under torchrun, with ``launch: server``."""
    return ("sh", "-c", TORCHRUN, "sh", str(PROGRAM), "--print-every", "1", *arguments)


def losses(output: str) -> dict[int, float]:
    """The loss of each iteration in a log."""
    return {int(number): float(loss) for number, loss in re.findall(r"iteration (\d+) loss ([\d.]+)", output)}
