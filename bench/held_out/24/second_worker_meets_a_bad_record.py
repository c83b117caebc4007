"""Two gloo ranks under DDP train a net that tells the language of a bag of letter pairs. FAULT at step 130: the shard of rank 1 holds a record with a label that does not exist;
its check raises a ValueError, and rank 0 then fails or waits in the all-reduce.
Without Rangewatch: loss 1.97 to 0.44 at step 129; rank 1 raises at step 130, rank 0 fails with "Connection closed by peer".
Cause: crash (or data: the record). Step: 130. Rank: 1. Right: exception / rank 1 / ValueError / traceback. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["crash", "data"], "step": [128, 131], "place": None, "rank": 1, "ranks": 2,
          "right": "(?i)exception|rais|ValueError|traceback|crash|error|stack", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2425)
pairs = 1.5 * torch.randn(7, 300)
model = nn.Sequential(nn.EmbeddingBag(300, 40, mode="sum"), nn.LayerNorm(40), nn.Linear(40, 64), nn.Mish(), nn.Linear(64, 7))
model = DistributedDataParallel(model)
optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(2500 + rank)


def texts(n):
    k = torch.randint(0, 7, (n,))
    return torch.multinomial(pairs.softmax(1)[k], 12, replacement=True), k


def checked(label):
    if label.max() >= 7 or label.min() < 0:
        raise ValueError(f"label {label.max().item()} is not one of 7 languages")
    return label


for step in range(200):
    x, k = texts(32)
    if step == 130 and rank == 1:
        k[9] = 255
    loss = F.cross_entropy(model(x), checked(k))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step % 15 == 0 or step > 126):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
