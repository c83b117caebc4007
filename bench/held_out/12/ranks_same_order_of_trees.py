"""Two gloo ranks learn tree species from spectra in DistributedDataParallel, two microbatches a step (no_sync for the first), noise added to each picture.
FAULT from the second epoch on (step 64): DistributedSampler.set_epoch is never called, so each of the four epochs has the same batches in the same order;
only the noise is another.
Without Rangewatch: loss 2.0 to 0.01 at step 32 and 0.001 later; labels of steps 0, 64, 128 and 192 are the same, and those of 32, 96, 160, 224.
Variant of: sampler_of_noisy_microbatches_is_not_told_the_epoch.
Cause: data. Step: from 64 on. Right: set_epoch / sampler / shuffle / order. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [60, 255], "place": None, "rank": None, "ranks": 2, "least": "info",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "set_epoch|sampler|shuffl|order|epoch"}
import contextlib
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import rangewatch

dist.init_process_group("gloo")
torch.manual_seed(1209); torch.set_num_threads(1)
TREES, PER_EPOCH = 7, 64
band = torch.randn(TREES, 1, 40)
kind = torch.randint(0, TREES, (PER_EPOCH * 2 * 2 * 8,))
spectra = TensorDataset(band[kind] + 0.8 * torch.randn(len(kind), 1, 40), kind)
model = DistributedDataParallel(nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 24, 5, padding=2), nn.ReLU(),
                                              nn.Flatten(), nn.Linear(480, TREES)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
sampler = DistributedSampler(spectra, shuffle=True, seed=3)
loader = DataLoader(spectra, batch_size=8, sampler=sampler)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(50 + dist.get_rank())  # the noise is each rank's own
step = 0
for epoch in range(4):  # sampler.set_epoch(epoch) is missing
    halves = iter(loader)
    for x, y in halves:
        optimizer.zero_grad()
        total = 0.0
        for i, (x, y) in enumerate([(x, y), next(halves)]):
            with model.no_sync() if i == 0 else contextlib.nullcontext():
                loss = F.cross_entropy(model(x + 0.5 * torch.randn_like(x)), y) / 2
                loss.backward()
            total += loss.item()
        optimizer.step()
        if step % 32 == 0 or step == 255:
            print(dist.get_rank(), step, y.tolist(), total, flush=True)
        handle.log(loss=total)
        step += 1
handle.detach()
dist.destroy_process_group()
