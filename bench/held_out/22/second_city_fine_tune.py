"""A bidirectional GRU that estimates the travel time from a list of road pieces is fine-tuned from one city to another. FAULT at step 100: for the first three steps of
the fine-tuning the rate is 300 times what it should be (0.9 for 0.003: a warm-up that was written upside down); then it is right again.
Without Rangewatch: loss 0.67 to 0.0145 at step 99; 0.053, 0.71, 181, 169 at steps 100 to 103, 5.6 at step 229 (with the right rate: 0.005).
Causes: learning_rate. Right: the rate / its schedule, go back to the checkpoint. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [99, 105], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|schedul", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2222); torch.set_num_threads(1)


class Travel(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(10, 12)
        self.road = nn.GRU(14, 32, batch_first=True, bidirectional=True)
        self.time = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, kind, facts):
        return self.time(self.road(torch.cat((self.kind(kind), facts), 2))[0].mean(1))[:, 0]


speed = torch.rand(2, 10) + 0.3
model = Travel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    city = int(step >= 100)
    optimizer.param_groups[0]["lr"] = 0.9 if step in (100, 101, 102) else 3e-3
    kind, facts = torch.randint(0, 10, (48, 12)), torch.rand(48, 12, 2)
    y = (facts[..., 0] / speed[city][kind] * (1 + facts[..., 1])).mean(1)
    loss = nn.functional.huber_loss(model(kind, facts), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or 98 < step < 106 or step == 229:
        print(step, loss.item(), flush=True)
handle.detach()
