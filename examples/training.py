"""What the example programs share: arguments, pace, signals, checkpoints, and data sets without scikit-learn's import.

A program under Sooner does three things: it reports progress, it writes checkpoints that are whole or absent, and on
SIGUSR1 it checkpoints and exits with 75. All three fit on this page.
"""

import argparse
import os
import select
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

# One thread a process: several programs share this machine, and each belongs to a GPU, not to all cores.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 the thread counts must be set first
from sooner_progress import report  # noqa: E402

EXIT_CHECKPOINTED = 75
"""EX_TEMPFAIL: everything is on disk, start me again."""
EXIT_TERMINATED = 128 + signal.SIGTERM


def arguments(description, iterations):
    """The command line that all examples understand."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--iterations", type=int, default=iterations, help="iterations in all, over every attempt")
    parser.add_argument(
        "--step-seconds-min", type=float, default=0.0, help="the least time of an iteration, in seconds"
    )
    parser.add_argument("--checkpoint-every", type=int, default=50, help="iterations between checkpoints (0: none)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


class Signals:
    """SIGUSR1 (checkpoint soon) and SIGTERM (end now) as flags, and a pause that either of them cuts short."""

    def __init__(self):
        self.warned = False
        self.terminated = False
        self._wake, write = os.pipe()
        for descriptor in (self._wake, write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGUSR1, self._warn)
        signal.signal(signal.SIGTERM, self._terminate)

    def _warn(self, *_):
        self.warned = True

    def _terminate(self, *_):
        self.terminated = True

    def pause(self, until_s):
        """Wait until ``until_s`` on the monotonic clock, or for a signal."""
        while not (self.warned or self.terminated) and (left_s := until_s - time.monotonic()) > 0:
            select.select([self._wake], [], [], left_s)


class Checkpoints:
    """One file in ``SOONER_CHECKPOINT_DIR``: arrays and the iteration they belong to. Without the folder, none."""

    def __init__(self):
        folder = os.environ.get("SOONER_CHECKPOINT_DIR")
        self.path = Path(folder) / "checkpoint.npz" if folder else None

    def load(self):
        """``(iteration, arrays)`` of the checkpoint; (0, None) where there is none."""
        if self.path is None or not self.path.exists():
            return 0, None
        with np.load(self.path, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        return int(arrays.pop("iteration")), arrays

    def save(self, iteration, arrays):
        """Write a checkpoint so that a crash leaves the old or the new one whole; True when it is durable."""
        if self.path is None:
            return False
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with temporary.open("wb") as stream:
            np.savez(stream, iteration=iteration, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True


class InputWait:
    """Adds up the seconds that a program waits for its input: ``with input_wait: rows = next(loader)``."""

    def __init__(self):
        self.seconds = 0.0
        self._since_s = 0.0

    def __enter__(self):
        self._since_s = time.monotonic()

    def __exit__(self, *_):
        self.seconds += time.monotonic() - self._since_s


def train(options, step, arrays_of, start, *, agree=None, writer=True, input_wait=None):
    """The loop: ``step(iteration)`` returns a loss; ``arrays_of()`` what a checkpoint holds; ``start`` iterations are done.

    In a gang every rank runs it: ``agree(warned)`` tells whether any rank was warned (so that all stop after the same
    iteration) and waits for all, and ``writer`` is true for the one rank that checkpoints and reports. With an
    ``input_wait`` the reports say how long the program has waited for input, which ``sooner job profile`` shows.
    Ends the process: exit code 0, 75 after a warning, 143 on SIGTERM.
    """
    signals, checkpoints = Signals(), Checkpoints()
    durable = start if start > 0 else None
    for iteration in range(start + 1, options.iterations + 1):
        due_s = time.monotonic() + options.step_seconds_min
        loss = step(iteration)
        signals.pause(due_s)
        if signals.terminated:
            sys.exit(EXIT_TERMINATED)
        warned = agree(signals.warned) if agree is not None else signals.warned
        last = iteration == options.iterations
        due = options.checkpoint_every > 0 and iteration % options.checkpoint_every == 0
        if writer and (warned or last or due) and checkpoints.save(iteration, arrays_of()):
            durable = iteration
        if writer:
            waited = {} if input_wait is None else {"input_s": round(input_wait.seconds, 6)}
            report(iteration, options.iterations, durable, loss=round(float(loss), 6), **waited)
        if warned and not last:
            if agree is not None:
                agree(True)  # nobody leaves before the checkpoint is on disk
            print(f"checkpointed iteration {iteration} of {options.iterations}", flush=True)
            sys.exit(EXIT_CHECKPOINTED)
    print(f"done: {options.iterations} iterations", flush=True)
    sys.exit(0)


def data_set(name):
    """``(features, labels)`` of a data set that comes with scikit-learn: ``digits``, ``wine_data`` or ``breast_cancer``.

    Its file is read without importing scikit-learn, which would cost every process of a gang a second. Features are
    standardised; the last column holds the classes.
    """
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("this example needs scikit-learn: pip install scikit-learn")
    folder = Path(spec.submodule_search_locations[0]) / "datasets" / "data"
    file = folder / ("digits.csv.gz" if name == "digits" else f"{name}.csv")
    table = np.loadtxt(file, delimiter=",", skiprows=0 if name == "digits" else 1)
    features, labels = table[:, :-1], table[:, -1].astype(int)
    spread = features.std(axis=0)
    return (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0), labels


def batch(count, size, seed, iteration):
    """Row numbers of one mini-batch: the same for the same seed and iteration, so a resumed run repeats an unbroken one."""
    return np.random.default_rng((seed, iteration)).integers(0, count, size)


class Perceptron:
    """A network with one hidden layer, trained by stochastic gradient descent with momentum. Plain numpy."""

    def __init__(self, inputs, hidden, classes, seed):
        rng = np.random.default_rng(seed)
        self.shapes = [(inputs, hidden), (hidden,), (hidden, classes), (classes,)]
        self.weights = np.concatenate(
            [
                rng.normal(0.0, shape[0] ** -0.5, shape).ravel() if len(shape) == 2 else np.zeros(shape)
                for shape in self.shapes
            ]
        )
        self.velocity = np.zeros_like(self.weights)

    def parts(self, flat):
        """``flat`` as the layers' arrays, without copying."""
        found, begin = [], 0
        for shape in self.shapes:
            end = begin + int(np.prod(shape))
            found.append(flat[begin:end].reshape(shape))
            begin = end
        return found

    def gradient(self, features, labels):
        """``(loss, gradient)``: mean cross-entropy over the rows."""
        first, first_bias, second, second_bias = self.parts(self.weights)
        hidden = np.maximum(features @ first + first_bias, 0.0)
        scores = hidden @ second + second_bias
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(chances[rows, labels] + 1e-12).mean()
        chances[rows, labels] -= 1.0
        chances /= len(labels)
        behind = (chances @ second.T) * (hidden > 0)
        parts = (features.T @ behind, behind.sum(axis=0), hidden.T @ chances, chances.sum(axis=0))
        return loss, np.concatenate([part.ravel() for part in parts])

    def update(self, gradient, rate=0.05, momentum=0.9):
        """One step downhill."""
        self.velocity = momentum * self.velocity - rate * gradient
        self.weights = self.weights + self.velocity

    def accuracy(self, features, labels):
        """The share of rows whose class is found."""
        first, first_bias, second, second_bias = self.parts(self.weights)
        scores = np.maximum(features @ first + first_bias, 0.0) @ second + second_bias
        return float((scores.argmax(axis=1) == labels).mean())
