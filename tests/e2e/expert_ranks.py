"""One of four gloo ranks that train models with experts, once for each run, each on rows of its own.

    expert_ranks.py URL FOLDER RUN...

RUN is the name of a model, see `made`. What its routers chose, as a hook of this script
saw it, is written to FOLDER/RUN.RANK.json: router -> step -> expert -> tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rangewatch

STEPS, EXPERTS = 4, 8
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_experts_per_tok": 2,
}  # fmt: skip


def made(name: str) -> Any:
    """A small model of Transformers with experts, from its config."""
    import transformers

    if name == "Mixtral":
        config: Any = transformers.MixtralConfig(**SIZES, num_local_experts=8)
        return transformers.MixtralForCausalLM(config)
    if name == "Qwen3-MoE":
        config = transformers.Qwen3MoeConfig(**SIZES, num_experts=8, moe_intermediate_size=16, head_dim=8)
        return transformers.Qwen3MoeForCausalLM(config)
    return transformers.OlmoeForCausalLM(transformers.OlmoeConfig(**SIZES, num_experts=8))


def train(url: str, folder: Path, run: str) -> None:
    torch.manual_seed(0)
    model = made(run)
    chosen: dict[str, list[list[int]]] = {}

    def count(fqn: str, out: Any) -> None:
        rows = out[-1].flatten().tolist()
        chosen[fqn].append([sum(1 for place in rows if place == expert) for expert in range(EXPERTS)])

    for fqn, module in model.named_modules():
        if type(module).__name__.endswith("TopKRouter"):
            chosen[fqn] = []
            module.register_forward_hook(lambda _, args, out, fqn=fqn: count(fqn, out))
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(wrapped.parameters(), 1e-3)
    with rangewatch.attach(wrapped, optimizer, url=url, run=run, quiet=True, watcher=False, collect=()):
        for step in range(STEPS):
            torch.manual_seed(100 * dist.get_rank() + step)
            rows = torch.randint(0, SIZES["vocab_size"], (2, 16))
            wrapped(input_ids=rows, labels=rows).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    (folder / f"{run}.{dist.get_rank()}.json").write_text(json.dumps(chosen))


def main() -> None:
    url, folder, *runs = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for run in runs:
        train(url, Path(folder), run)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
