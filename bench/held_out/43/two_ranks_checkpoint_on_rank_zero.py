"""Two gloo ranks resume the training of a topic classifier (embedding bag and MLP, DDP, AdamW) (PyTorch forum: 'loss jumps after resuming with DDP').
FAULT at step 0: the checkpoint is loaded 'if rank == 0' and into ddp.module, AFTER DDP has sent rank 0's weights around; rank 1 goes on with its fresh weights, both get the same averaged gradients and stay apart.
Without Rangewatch: rank 0 loss 0.12 at step 0, up to 0.27, 0.23 at the end; rank 1 2.09 to 1.93; the norms of bag.weight differ from step 0 on (99.04 and 98.40).
Cause: replicas. Step: from 0. Right: load on all ranks (map_location) or before wrapping, broadcast. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "right": r"(?i)broadcast|all ranks|every rank|each rank|load|replica|synchron|same (weights|checkpoint)|differ", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import io
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import rangewatch


def words(n, topic_words, g):
    y = torch.randint(0, 8, (n,), generator=g)
    common = torch.randint(0, 300, (n, 14), generator=g)
    special = topic_words[y].gather(1, torch.randint(0, 25, (n, 6), generator=g))
    return torch.cat([common, special], 1), y


class TopicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(300, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, ids):
        return self.mlp(self.bag(ids))


def earlier_run(topic_words):
    g = torch.Generator().manual_seed(0)
    net = TopicNet()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    for _ in range(150):
        ids, y = words(64, topic_words, g)
        opt.zero_grad()
        nn.functional.cross_entropy(net(ids), y).backward()
        opt.step()
    f = io.BytesIO()
    torch.save(net.state_dict(), f)
    f.seek(0)
    return f


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    topic_words = torch.stack([torch.randperm(300)[:25] for _ in range(8)])
    checkpoint = earlier_run(topic_words) if rank == 0 else None
    dist.barrier()

    ddp = DistributedDataParallel(TopicNet())
    if rank == 0:
        ddp.module.load_state_dict(torch.load(checkpoint))
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    handle = rangewatch.attach(ddp, opt)
    g = torch.Generator().manual_seed(100 + rank)
    for step in range(180):
        ids, y = words(64, topic_words, g)
        loss = nn.functional.cross_entropy(ddp(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        handle.log(loss=loss.item())
        if step % 30 == 0 or step == 179:
            print(f"[rank {rank}] step {step} loss {loss.item():.4f} weight norm {ddp.module.bag.weight.norm().item():.3f}", flush=True)
    handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
