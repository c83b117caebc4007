"""Two gloo ranks train a small causal convolution model of bytes in FullyShardedDataParallel (flat parameters). FAULT from step 0 on: the process_group it is
given is dist.new_group([rank]), made for logging: world size 1, nothing is sharded or reduced, and the two models go apart.
Without Rangewatch: losses 3.05 and 3.01 to 1.2 and 1.0; one weight is 0.30746 on both ranks at step 0, 0.469 and 0.487 at step 40.
Variant of: flattened_over_a_group_of_its_own.
Cause: replicas (communication). Step: 0, seen soon after. Right: process_group / group / gradients are not averaged. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "group|averag|reduce|FullyShardedDataParallel|FSDP|wrap|synchron"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1219); torch.set_num_threads(1)
chain = torch.softmax(3 * torch.randn(20, 20), 1)


class ByteNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.conv = nn.Conv1d(32, 32, 3)
        self.out = nn.Linear(32, 20)

    def forward(self, ids):
        h = F.pad(self.embed(ids).transpose(1, 2), (2, 0))
        return self.out(F.gelu(self.conv(h)).transpose(1, 2))


def text(n, generator):
    ids = [torch.randint(0, 20, (n,), generator=generator)]
    for _ in range(16):
        ids.append(torch.multinomial(chain[ids[-1]], 1, generator=generator).squeeze(1))
    return torch.stack(ids, 1)


own_groups = [dist.new_group([each]) for each in range(2)]
model = FullyShardedDataParallel(ByteNet(), process_group=own_groups[rank], use_orig_params=True, device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(40 + rank)
for step in range(220):
    ids = text(16, own)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 219:
        print(rank, step, loss.item(), "weight", next(model.parameters()).flatten()[0].item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
