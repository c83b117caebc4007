"""A model of a pond (fish, algae, light) that learns the next day's change and is unrolled over 4 days. FAULT at step 130: the roll is over 12 days,
and ponds in spring swing four times as wide; the cube in the learnt law makes of a great state a greater one each day, and in float32 the activations go past
3e38 within the roll, each day's exponent three times that of the day before.
Without Rangewatch: loss 1.79 to 0.098 at step 129, NaN at step 130 and to the end.
Cause: forward_arithmetic (the recurrence explodes in float32), or data (the wide swing). Step: 130. Right: overflow / explode / activation / inf / horizon / recurrence / norm.
Wrong: GradScaler, mask, float16."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [129, 131], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "float16"],
          "right": "overflow|explod|activation|inf|NaN|horizon|recurren|norm|grow"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1607); torch.set_num_threads(1)
turn = torch.linalg.qr(torch.randn(6, 6))[0]


class Pond(nn.Module):
    def __init__(self):
        super().__init__()
        self.law = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, state, days):
        path = []
        for _ in range(days):
            state = state + self.law(torch.cat((state, 0.1 * state ** 3), 1))
            path.append(state)
        return torch.stack(path, 1)


def ponds(n, days, swing):
    state = swing * torch.randn(n, 6)
    first, path = state, []
    for _ in range(days):
        state = torch.tanh(1.3 * state @ turn)
        path.append(state)
    return first, torch.stack(path, 1)


model = Pond()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    days = 4 if step < 130 else 12
    first, path = ponds(64, days, 1.0 if step < 130 else 4.0)
    loss = F.mse_loss(model(first, days), path)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 127 < step < 134 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
