"""A mixture of four experts, each row to two of them, wholly in bfloat16, that reads the type of cloud from 20 readings; a balancer adds to the scores of the
gate what levels the load. FAULT at step 70: its sign was turned round in a clean-up (and it was
made stronger): who has many rows gets more. Two experts get no row at all soon after.
Without Rangewatch: loss 1.87 to 0.004 at step 69 with 62 to 68 rows for each of four experts; 0.17 at step 80 with 101, 34, 76, 45 rows; 128, 0,
128, 0 rows at step 100 and to the end, where the loss is 0.0007 to 0.016.
Cause: dead_units or no_gradient. Step: 70 to the end. Place: the experts or the gate. Right: balance / router / expert / rows. Wrong: GradScaler, rounding."""
EXPECT = {"cause": ["dead_units", "no_gradient"], "step": [69, 220], "place": "(switch\\.)?(experts|gate).*", "rank": 0,
          "right": "(?i)balanc|rout|expert|row|gat(e|ing)|dead|unused|no gradient", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2508); torch.set_num_threads(1)


class Switch(nn.Module):
    def __init__(self, width=40, n=4):
        super().__init__()
        self.gate = nn.Linear(width, n)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)) for _ in range(n))
        self.register_buffer("tilt", torch.zeros(n))

    def forward(self, h):
        score = self.gate(h)
        chosen = (score + self.tilt).topk(2, 1).indices
        share = score.gather(1, chosen).sigmoid()
        out = torch.zeros_like(h)
        self.rows = []
        for i, expert in enumerate(self.experts):
            r, c = torch.where(chosen == i)
            self.rows.append(r.numel())
            if r.numel():
                out = out.index_put((r,), expert(h[r]) * share[r, c].unsqueeze(1), accumulate=True)
        return h + out


class CloudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.switch, self.leave = nn.Linear(20, 40), Switch(), nn.Linear(40, 6)

    def forward(self, x):
        return self.leave(self.switch(self.enter(x)))


centre = torch.randn(6, 3, 20)
net = CloudNet().bfloat16()
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    y = torch.randint(0, 6, (128,))
    x = centre[y, torch.randint(0, 3, (128,))] + 0.5 * torch.randn(128, 20)
    loss = F.cross_entropy(net(x.bfloat16()).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    load = torch.tensor(net.switch.rows) / 256.0
    sign = -1.0 if step < 70 else 8.0
    net.switch.tilt += (sign * 0.3 * (load - 0.25)).bfloat16()
    if step % 20 == 0 or step in (69, 75, 219):
        print(step, loss.item(), net.switch.rows, flush=True)
    handle.log(loss=loss.item())
handle.detach()
