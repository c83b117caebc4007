"""Accelerate on two ranks, an MLP over tabular data with embeddings of categories, AdamW and a linear schedule over the 280 steps there are. FAULT:
the prepared scheduler moves once for each process, so the rate reaches 0 at step 140 and stays there: the second half changes nothing. Without
Rangewatch: loss 5.6 to about 2.2 at step 140 and between 1.3 and 3.0 after it; the rate printed is 1.4e-4 at step 120 and 0.0 from step 140 on.
Report: huggingface/accelerate#2926 (stepping too fast on several GPUs), #2142, #1398, huggingface/diffusers#3954.
Cause: learning rate (0 from step 140 on). Right: the schedule's length times the number of processes / do not prepare it. Wrong: lower the learning
rate, precision, mask, data, frozen layers."""
EXPECT = {"cause": ["learning_rate"], "step": [136, 279], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "leave out samples", "requires_grad"],
          "right": "learning rate|schedul|lr"}
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from rangewatch.integrations.accelerate import attach

accelerator = Accelerator(cpu=True)
torch.manual_seed(23); torch.set_num_threads(1)
STEPS, ROWS = 280, 32


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(20, 8) for _ in range(3)])
        self.body = nn.Sequential(nn.Linear(34, 96), nn.BatchNorm1d(96), nn.SiLU(), nn.Linear(96, 64), nn.BatchNorm1d(64), nn.SiLU())
        self.out = nn.Linear(64, 1)

    def forward(self, numbers, kinds):
        x = torch.cat([numbers, *(table(kinds[:, k]) for k, table in enumerate(self.tables))], 1)
        return self.out(self.body(x)).squeeze(1)


n = STEPS * ROWS * 2
numbers, kinds = torch.randn(n, 10), torch.randint(0, 20, (n, 3))
effect = torch.randn(3, 20)
y = numbers[:, 0] * numbers[:, 1] + torch.sin(2 * numbers[:, 2]) + sum(effect[k][kinds[:, k]] for k in range(3)) + 0.2 * torch.randn(n)
model = Tabular()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))
loader = DataLoader(TensorDataset(numbers, kinds, y), batch_size=ROWS)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
handle = attach(model, optimizer)
for step, (a, b, target) in enumerate(loader):
    loss = F.mse_loss(model(a, b), target)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    schedule.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 and accelerator.is_main_process:
        print(step, round(loss.item(), 4), schedule.get_last_lr()[0], flush=True)
accelerator.end_training()
