"""An encoder of patients predicts the response to each of six drugs; the response to the drug given is gathered. FAULT from step 0 on: the gathered values have the shape
(64, 1), the targets (64,): the difference is broadcast to 64 x 64, each patient is compared with every target of the batch, and the net learns the mean.
Without Rangewatch: loss 5.0 to 6.3 at the end (the variance of the targets), the spread of the guesses falls to 0.05; with equal shapes the loss is 0.24.
Cause: data or forward_arithmetic (the shapes in the loss); that none is named is fair, as the numbers are all sound. Step: from 0 on, a state. Right: any.
Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic", "(none)"], "step": [0, 219], "place": None, "rank": 0, "least": "info",
          "right": "", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2414); torch.set_num_threads(1)


class Response(nn.Module):
    def __init__(self):
        super().__init__()
        self.age = nn.Embedding(10, 12)
        self.body = nn.Sequential(nn.Linear(27, 96), nn.LeakyReLU(), nn.LayerNorm(96), nn.Linear(96, 64), nn.LeakyReLU(), nn.Linear(64, 6))

    def forward(self, age, blood):
        return self.body(torch.cat((self.age(age), blood), 1))


effect, old = torch.randn(15, 6) / 15 ** 0.5, torch.randn(10)


def patients(n):
    age, blood, drug = torch.randint(0, 10, (n,)), torch.randn(n, 15), torch.randint(0, 6, (n, 1))
    response = 2.0 * (blood @ effect).gather(1, drug).squeeze(1) + old[age]
    return age, blood, drug, response + 0.1 * torch.randn(n)


model = Response()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    age, blood, drug, response = patients(64)
    given = model(age, blood).gather(1, drug)
    loss = (given - response).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        true = (given.squeeze(1) - response).pow(2).mean().item()
        print(step, loss.item(), "each with its own target", true, "spread of the guesses", given.std().item(), "of the targets", response.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
