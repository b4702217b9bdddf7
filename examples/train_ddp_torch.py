"""Data-parallel training with PyTorch (DistributedDataParallel): nccl on GPUs, gloo without.

Run it under torchrun, or with ``launch: gpu``, which starts each rank and needs no launcher. Every rank computes its share of
each mini-batch, so the losses do not depend on the number of ranks. A warning that reaches any rank stops all of them after the
same iteration. Rank 0 alone reads and writes the checkpoint.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sooner_progress import report
from torch.nn.parallel import DistributedDataParallel

EXIT_CHECKPOINTED = 75
"""EX_TEMPFAIL: the checkpoint is on disk, start me again. A launcher such as torchrun makes an exit code of its own of it."""
FEATURES, CLASSES = 32, 8


def main():
    """Train; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=200, help="iterations in all, over every attempt")
    parser.add_argument("--batch-size", type=int, default=96, help="rows of a mini-batch over all ranks")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="iterations between checkpoints (0: none)")
    parser.add_argument("--step-seconds-min", type=float, default=0.0, help="the least time of an iteration")
    parser.add_argument("--print-every", type=int, default=10, help="iterations between losses in the log")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warned = []
    # Before anything that takes time: without a handler no warning is sent.
    signal.signal(signal.SIGUSR1, lambda *_: warned.append(True))
    device = connect()
    if options.batch_size % dist.get_world_size():
        sys.exit(f"--batch-size {options.batch_size}: must be a multiple of the {dist.get_world_size()} ranks")
    try:
        code = train(options, device, warned)
    finally:
        dist.destroy_process_group()
    sys.exit(code)


def connect():
    """Join the other ranks; returns this rank's device. The launcher has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        return torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("gloo")
    return torch.device("cpu")


def train(options, device, warned):
    """Train until the last iteration or a warning; returns the exit code."""
    torch.manual_seed(options.seed)
    network = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)).to(
        device
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    done = load(network, optimizer, device)
    # Rank 0's weights are sent to the others here.
    model = DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)
    writer = dist.get_rank() == 0
    if writer:
        print(f"{dist.get_world_size()} ranks: from iteration {done}", flush=True)
    durable = done or None
    for iteration in range(done + 1, options.iterations + 1):
        due_s = time.monotonic() + options.step_seconds_min
        features, labels = batch(options, iteration, device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, due_s - time.monotonic()))
        mean_loss, stop = agree(loss, warned, device)
        last = iteration == options.iterations
        due = options.checkpoint_every > 0 and iteration % options.checkpoint_every == 0
        if writer and (stop or last or due) and save(iteration, network, optimizer):
            durable = iteration
        if writer:
            report(iteration, options.iterations, durable, loss=round(mean_loss, 6))
            if iteration % options.print_every == 0 or last or stop:
                print(f"iteration {iteration} loss {mean_loss:.6f}", flush=True)
        if stop and not last:
            dist.barrier()  # no rank ends before the checkpoint is on disk
            return EXIT_CHECKPOINTED
    return 0


def batch(options, iteration, device):
    """This rank's rows of a mini-batch: the same for the same seed and iteration, whatever ran before.

    The labels come from a fixed random network, which the training has to find.
    """
    teacher = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(options.seed))
    drawn = torch.Generator().manual_seed(options.seed * 1_000_003 + iteration)
    features = torch.randn(options.batch_size, FEATURES, generator=drawn)
    labels = (features @ teacher).argmax(dim=1)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    return features[mine].to(device), labels[mine].to(device)


def agree(loss, warned, device):
    """``(mean loss over all ranks, whether any rank was warned)``: the same on every rank, in one message an iteration."""
    total = torch.tensor([loss.item(), float(bool(warned))], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total[0].item() / dist.get_world_size(), total[1].item() > 0


def checkpoint_file():
    """Where the checkpoint is; None outside Sooner."""
    folder = os.environ.get("SOONER_CHECKPOINT_DIR")
    return Path(folder) / "checkpoint.pt" if folder else None


def load(network, optimizer, device):
    """Load what rank 0 finds into every rank; returns the number of iterations that are done."""
    state = [None]
    path = checkpoint_file()
    if dist.get_rank() == 0 and path is not None and path.exists():
        state = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(state, src=0, device=device)
    if state[0] is None:
        return 0
    network.load_state_dict(state[0]["network"])
    optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["iteration"]


def save(iteration, network, optimizer):
    """Write a checkpoint so that a crash leaves the old or the new one whole; True when it is durable."""
    path = checkpoint_file()
    if path is None:
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    state = {"iteration": iteration, "network": network.state_dict(), "optimizer": optimizer.state_dict()}
    with temporary.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


if __name__ == "__main__":
    main()
