"""Two gloo ranks under DDP train a net with batch norm that ranks prints: within each batch of eight it must
name the one with the steepest slant. FAULT from step 8 on:
sampler.set_epoch(start_epoch) is called with the epoch the run began with and not with the present one, so that every epoch deals the same batches in the same order.
Without Rangewatch: loss 1.9 to 0.0002; of unseen pairs 0.73 are in the right order at the end, 0.80 with the present epoch.
Cause: data. Step: from 8 on (the second epoch), a state. Right: set_epoch / sampler / shuffle / same order. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [8, 175], "place": None, "rank": 0, "ranks": 2, "least": "info",
          "right": "(?i)set_epoch|sampler|shuffl|order|epoch", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(2426)
line = torch.arange(16.0)


def prints(n):
    k = torch.rand(n)
    slant = (0.35 + 1.2 * k)[:, None, None]
    x = torch.sin(line[:, None] * slant + line * (1.6 - slant) + 6.28 * torch.rand(n, 1, 1))
    return (x + 0.7 * torch.randn(n, 16, 16))[:, None], k


class Prints(Dataset):
    def __init__(self):
        self.x, self.k = prints(128)

    def __len__(self):
        return 128

    def __getitem__(self, i):
        return self.x[i], self.k[i]


data = Prints()
test_x, test_k = prints(256)
net = nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler)
start_epoch, step = 0, 0
for epoch in range(start_epoch, start_epoch + 22):
    sampler.set_epoch(start_epoch)
    for x, k in loader:
        loss = F.cross_entropy(model(x).T, k.argmax()[None])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        step += 1
    if dist.get_rank() == 0:
        net.eval()
        with torch.no_grad():
            s = net(test_x)[:, 0]
            test = ((s[:128] > s[128:]) == (test_k[:128] > test_k[128:])).float().mean().item()
        net.train()
        print(step, loss.item(), "unseen pairs in right order", test, "first items", list(iter(sampler))[:4], flush=True)
handle.detach()
dist.destroy_process_group()
