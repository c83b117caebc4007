"""LoRA adapters on a frozen classifier that is to learn a shifted task. FAULT from the start: the peak of the warm-up is 0.3 where 0.003 was meant; over
80 steps the rate climbs, and from some step on the adapters blow the logits up.
Without Rangewatch: loss 5.3 to 0.50 at step 20 (rate 0.08), 6.6 at steps 30 and 40, 1.79 (log 6) from 60, 3336 at step 100, 1.79 to the end.
Cause: learning_rate. Step: 0 to 80 (where the loss turns). Right: learning rate / warm-up. Wrong: attention mask, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 90], "place": None, "rank": None,
          "right": "(?i)learning[ _]rate|\\blr\\b|warm-?up|peak", "wrong": ["attention mask", "GradScaler", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2909); torch.set_num_threads(1)


class LoRA(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_A.T) @ self.lora_B.T


def task(n, turn):
    y = torch.randint(0, 6, (n,))
    return (protos @ turn)[y] + 0.8 * torch.randn(n, 32), y


protos, eye = torch.randn(6, 32), torch.eye(32)
turn = torch.linalg.qr(eye + 0.25 * torch.randn(32, 32))[0]
net = nn.Sequential(nn.Linear(32, 80), nn.GELU(), nn.Linear(80, 80), nn.GELU(), nn.Linear(80, 6))
pre = torch.optim.Adam(net.parameters(), lr=2e-3)
for _ in range(150):
    x, y = task(64, eye)
    pre.zero_grad()
    F.cross_entropy(net(x), y).backward()
    pre.step()
net.requires_grad_(False)
for i in (0, 2, 4):
    net[i] = LoRA(net[i])
adapters = [p for p in net.parameters() if p.requires_grad]
config = {"lr": 3e-1, "warmup_steps": 80, "weight_decay": 0.0}
optimizer = torch.optim.AdamW(adapters, lr=config["lr"], weight_decay=config["weight_decay"])
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / config["warmup_steps"]))
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = task(64, turn)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 10 == 0 or step == 199:
        print(step, loss.item(), "lr", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
