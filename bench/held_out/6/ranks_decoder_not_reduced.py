"""Two gloo ranks, a recogniser in DistributedDataParallel. FAULT from step 0 on: the training calls model.module.encode and decode, not the wrapper's
forward, so that DDP never reduces gradients and each rank trains a model of its own. All is finite, both losses go down.
Without Rangewatch: loss 2.99 and 2.98 to 0.09 and 0.19; the largest difference of words.weight between ranks is 0.004 after step 0, 0.036 after step
20, 0.199 at the end.
Report: k2-fsa/icefall#226 (model.module.forward_sth avoids the reduction), moojink/openvla-oft#160, OpenTSLM/OpenTSLM#49.
Cause: replicas (or communication). Step: 0. Right: DDP's forward / synchronise / ranks. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "rank|DDP|forward|module|synchron|all.?reduce|replica|broadcast"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(621); torch.set_num_threads(1)


class Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 48), nn.SiLU(), nn.Linear(48, 48))
        self.ctc = nn.Linear(48, 10)
        self.decoder = nn.GRU(48, 48, batch_first=True)
        self.words = nn.Linear(48, 10)

    def encode(self, x):
        return self.encoder(x)

    def decode(self, h):
        return self.words(self.decoder(h)[0])

    def forward(self, x):
        h = self.encode(x)
        return self.ctc(h), self.decode(h)


voice = torch.randn(10, 20)
model = nn.parallel.DistributedDataParallel(Conformer())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(300 + rank)
for step in range(160):
    y = torch.randint(0, 10, (8, 12))
    x = voice[y] + torch.randn(8, 12, 20)
    h = model.module.encode(x)  # not through DDP: nobody prepares the reduction
    loss = 0.3 * F.cross_entropy(model.module.ctc(h).transpose(1, 2), y) + F.cross_entropy(model.module.decode(h).transpose(1, 2), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 159:
        mine = model.module.words.weight.detach().clone()
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "from rank 0", (mine - other).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
