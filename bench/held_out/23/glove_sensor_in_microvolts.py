"""A plain recurrent net (tanh cells) that reads the bend of a data glove and says which sign is made. FAULT at step 100: a new driver delivers microvolts
instead of millivolts, a thousand times as large; every cell sits at -1 or 1 from then on and hardly any gradient passes.
Without Rangewatch: loss 2.09 to 0.28 at step 99, 3.49 at step 100, 1.35 to 1.45 from step 120 to the end; 97 % of the cells of the first layer
are beyond 0.99 from step 100 on, none before.
Causes: data (the units), dead_units (saturated cells), no_gradient. Right: input / scale / saturated / normalise. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["data", "dead_units", "no_gradient"], "step": [100, 239], "place": None, "rank": 0,
          "right": "(?i)input|data|batch|scale|saturat|normali|tanh", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2301); torch.set_num_threads(1)
paths = torch.randn(2, 12, 10).cumsum(1) * 0.15
signs = torch.cat([paths * a for a in (0.5, 1.0, 1.5, 2.0)])  # two movements, each in four strengths


class GloveReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.Linear(10 + 48, 48), nn.Linear(48 + 48, 48)])
        self.act = nn.Tanh()
        self.say = nn.Linear(48, 8)

    def forward(self, x):
        h = [x.new_zeros(len(x), 48) for _ in self.cells]
        for frame in x.unbind(1):
            for i, cell in enumerate(self.cells):
                frame = h[i] = self.act(cell(torch.cat((frame, h[i]), 1)))
        return self.say(h[-1])


model = GloveReader()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, 8, (48,))
    x = signs[y] + 0.1 * torch.randn(48, 12, 10)
    if step >= 100:
        x = x * 1000
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 100, 101, 239):
        h = model.act(model.cells[0](torch.cat((x[:, 0], x.new_zeros(48, 48)), 1)))
        print(step, loss.item(), "saturated", (h.abs() > 0.99).float().mean().item(), "gradient", model.cells[0].weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
