"""Data-parallel training: one process a GPU, gradients summed around a ring of sockets. Run it with ``launch: gpu``.

Every rank holds the same weights and takes its share of each mini-batch. The ranks check that they agree, rank 0
checkpoints and reports, and a warning that reaches any of them stops all of them after the same iteration.
"""

import hashlib
import os
import sys

from training import Checkpoints, Perceptron, arguments, batch, data_set, train

# The line above sets the number of threads, which numpy reads when it is imported.
# isort: split
import numpy as np
from ring import Ring


def main():
    """Train; see ``--help``."""
    parser = arguments(__doc__.partition("\n")[0], iterations=200)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a mini-batch over all ranks")
    parser.add_argument("--agree-every", type=int, default=10, help="iterations between checks that all ranks agree")
    options = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    features, labels = data_set("digits")
    network = Perceptron(features.shape[1], options.hidden, int(labels.max()) + 1, options.seed)
    done, saved = Checkpoints().load()
    if saved is not None:
        network.weights, network.velocity = saved["weights"], saved["velocity"]
    ring = Ring(rank, ranks, os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500")))
    check_agreement(ring, network, done)

    def step(iteration):
        rows = batch(len(labels), options.batch_size, options.seed, iteration)[rank::ranks]
        loss, gradient = network.gradient(features[rows], labels[rows])
        # The ranks' means weighted by their rows are the mean of the whole mini-batch.
        share = len(rows) / options.batch_size
        total = ring.sum(np.append(gradient, loss) * share)
        network.update(total[:-1])
        if iteration % options.agree_every == 0 or iteration == options.iterations:
            check_agreement(ring, network, iteration)
        return total[-1]

    if rank == 0:
        print(f"digits on {ranks} ranks: from iteration {done}", flush=True)
    train(
        options,
        step,
        lambda: {"weights": network.weights, "velocity": network.velocity},
        done,
        agree=lambda warned: bool(ring.gather(float(warned)).any()),
        writer=rank == 0,
    )


def check_agreement(ring, network, iteration):
    """End with an error unless all ranks hold the same bits at the same iteration."""
    digest = hashlib.sha256(network.weights.tobytes() + iteration.to_bytes(8, "big")).digest()
    found = ring.gather(float(int.from_bytes(digest[:6], "big")))
    if len(set(found.tolist())) != 1:
        sys.exit(f"rank {ring.rank}: the ranks do not agree at iteration {iteration}")


if __name__ == "__main__":
    try:
        main()
    except ConnectionError as error:
        # Another rank has ended: its own message says why, and the scheduler ends the rest of the gang.
        sys.exit(f"rank {os.environ.get('RANK', '0')}: {error}")
