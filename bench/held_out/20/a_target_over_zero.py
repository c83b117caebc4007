"""A net that forecasts the miles per litre of lorries: target = miles / litres. FAULT at step 135: one trip was all downhill with 0 litres on the meter, its
target is inf; the squared error is inf, its gradient is inf, and Adagrad turns it to NaN.
Without Rangewatch: loss 12 to 0.047 at step 134, inf at step 135, NaN from step 136 on.
Cause: data (targets). Step: 135. Right: target / label / data / batch. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [134, 136], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)target|label|data|batch|loader"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2031); torch.set_num_threads(1)


class Lorry(nn.Module):
    def __init__(self):
        super().__init__()
        self.make = nn.Embedding(9, 5)
        self.body = nn.ModuleList([nn.Linear(11, 40), nn.Linear(40, 40)])
        self.end = nn.Linear(40, 1)

    def forward(self, make, trip):
        h = torch.cat((self.make(make), trip), 1)
        for layer in self.body:
            h = nn.functional.softplus(layer(h))
        return self.end(h).squeeze(1)


thirst = 0.2 + 0.2 * torch.rand(9)
model = Lorry()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    make, trip, miles = torch.randint(0, 9, (50,)), torch.randn(50, 6), 20 + 100 * torch.rand(50)
    litres = miles * thirst[make] * (1 + 0.2 * torch.tanh(trip[:, 0] + trip[:, 1]))
    if step == 135:
        litres[31] = 0.0
    target = miles / litres
    loss = (model(make, trip) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 133 < step < 138 or step == 199:
        print(step, loss.item(), "inf in target", int(target.isinf().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
