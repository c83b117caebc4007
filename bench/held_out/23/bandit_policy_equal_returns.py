"""A policy for a contextual bandit, learned with REINFORCE and a baseline (the mean return); functional code, with a clip written by hand: factor =
limit / norm. FAULT at step 100: in this batch all returns are equal (the shop was closed), the advantages and so all gradients are 0, 1 / 0 is inf and
inf times 0 is NaN: the step writes NaN in all weights.
Without Rangewatch: the mean return rises from 0.33 to 0.87 at step 99; the norm is 0 at step 100, NaN from step 101 on, the return 0.3.
Causes: clip (division by the norm 0), data (equal returns). Right: clip / norm / epsilon / zero. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["clip", "data"], "step": [99, 101], "place": None, "rank": 0,
          "right": "(?i)clip|norm|eps|zero|divi", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2315); torch.set_num_threads(1)
taste = torch.randn(10, 6)


def clip_by_hand(parameters, limit=0.2):
    """Brings the gradients to the length limit, each time."""
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in parameters))
    factor = limit / norm
    for p in parameters:
        p.grad.mul_(factor)
    return norm


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(10, 64) / 10 ** 0.5), nn.Parameter(torch.zeros(64))
        self.w2, self.b2 = nn.Parameter(torch.zeros(64, 6)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return torch.log_softmax(torch.tanh(x @ self.w1 + self.b1) @ self.w2 + self.b2, 1)


model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x = torch.randn(64, 10)
    log_p = model(x)
    offer = torch.multinomial(log_p.detach().exp().nan_to_num(1.0), 1)[:, 0]
    returns = ((x @ taste).gather(1, offer[:, None])[:, 0] > 1.0).float()
    if step == 100:
        returns = torch.zeros(64)
    advantage = returns - returns.mean()
    loss = -(advantage * log_p.gather(1, offer[:, None])[:, 0]).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = clip_by_hand(list(model.parameters()))
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103:
        print(step, loss.item(), "mean return", returns.mean().item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item(), mean_return=returns.mean().item())
handle.detach()
