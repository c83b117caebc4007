"""A net that foretells the next kind of goods from a customer's purchases, given as shares of each kind (Adagrad). FAULT at step 95: new customers come into
the data, who have bought nothing; their share is 0 / 0, NaN goes into the first layer and into all weights.
Without Rangewatch: loss 3.03 to 1.2 at step 94, NaN at step 95 and to the end.
Cause: data or forward_arithmetic (or eps). Step: 95. Right: zero / NaN in the input. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic", "eps"], "step": [94, 97], "place": None, "rank": None,
          "right": "(?i)data|input|divi|zero|eps|clamp|batch|sample|nan", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2703); torch.set_num_threads(1)
KINDS = 20
taste = torch.randn(5, KINDS) * 1.5


def customers(n, newcomers):
    kind = torch.randint(0, 5, (n,))
    rate = taste[kind].softmax(-1)
    bought = torch.poisson(rate * torch.randint(6, 30, (n, 1)))
    bought[bought.sum(1) == 0, 0] = 1
    if newcomers:
        bought[torch.rand(n) < 0.03] = 0
    following = torch.multinomial((taste[kind] * 2).softmax(-1), 1)[:, 0]
    return bought, following


class NextKind(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(KINDS, 64)
        self.mix = nn.Linear(64, 64)
        self.leave = nn.Linear(64, KINDS)

    def forward(self, bought):
        share = bought / bought.sum(1, keepdim=True)
        h = torch.tanh(self.enter(share * 4))
        h = torch.tanh(self.mix(h)) + h
        return self.leave(h)


net = NextKind()
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    bought, y = customers(128, newcomers=step >= 95)
    loss = nn.functional.cross_entropy(net(bought), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (94, 95, 96, 179):
        print(step, loss.item(), "empty", (bought.sum(1) == 0).sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
