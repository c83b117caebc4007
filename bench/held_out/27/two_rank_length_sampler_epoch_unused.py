"""Two gloo ranks, an own distributed sampler over 384 sentences for a conv tagger of sentiment, gradients averaged by hand (AdamW). FAULT from the second
epoch: `set_epoch` is called and the sampler keeps the number, but its shuffle is seeded with the seed alone: each epoch has the very same batches in the
same order on each rank.
Without Rangewatch: loss 0.70 to 0.24, nothing to see in it; the first batch of every epoch is the same (sum of its words 15771 on rank 0, 15617 on rank 1).
Cause: data. Step: 0 or the second epoch (step 12). Right: sampler / epoch / shuffle / order. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["data", "(none)"], "step": [0, 60], "place": None, "rank": None, "ranks": 2, "least": "info",
          "right": "(?i)sampler|epoch|shuffl|order|same batch|repeat|seed", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2710); torch.set_num_threads(1)


class ShardSampler(Sampler):
    def __init__(self, n, rank, world, seed=11):
        self.n, self.rank, self.world, self.seed, self.epoch = n, rank, world, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.n // self.world

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        return iter(torch.randperm(self.n, generator=g)[self.rank::self.world].tolist())


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(120, 24)
        self.conv = nn.Conv1d(24, 48, 3, padding=1)
        self.out = nn.Linear(48, 2)

    def forward(self, x):
        return self.out(F.relu(self.conv(self.words(x).transpose(1, 2))).amax(2))


text = torch.randint(0, 120, (384, 16))
mood = ((text < 20).sum(1) - (text >= 100).sum(1) + 0.5 * torch.randn(384) > 0).long()
sampler = ShardSampler(384, rank, world)
loader = DataLoader(TensorDataset(text, mood), batch_size=16, sampler=sampler)
net = Tagger()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
handle = rangewatch.attach(net, optimizer)
step = 0
for epoch in range(16):
    sampler.set_epoch(epoch)
    for k, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        if k == 0:
            print(rank, epoch, step, loss.item(), "first batch", x.sum().item(), flush=True)
        handle.log(loss=loss.item())
        step += 1
handle.detach()
dist.destroy_process_group()
