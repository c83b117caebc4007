"""Fine-tunes a T5 on two CPU ranks: torchrun --nproc-per-node 2 examples/THIS_FILE --steps 50"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from t5_model import SIZES, SpanCorruption, build_model


def main() -> None:
    options = parse_options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)

    model = DistributedDataParallel(build_model(options.size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    batches = SpanCorruption(batch=options.batch, length=options.length, seed=options.seed * 1009 + rank)

    for step in range(options.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batches()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}  loss {loss.item():.3f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny", help="tiny, or base291: 12 layers, 291 modules")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4, help="windows of text a rank and step")
    parser.add_argument("--length", type=int, default=128, help="bytes a window")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads a rank")
    return parser.parse_args()


if __name__ == "__main__":
    main()
