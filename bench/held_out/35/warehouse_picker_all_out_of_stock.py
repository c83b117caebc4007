"""A scorer learns from a planner which of seven depots should ship an order (imitation; cross-entropy over the depots that have the item in stock; NAdam). FAULT at step 160: orders come in for an item which
no depot has in stock; the `Stocked` layer fills all of its seven scores with -inf and the log-softmax of these rows is NaN.
Without Rangewatch: loss 1.28 to 0.20 at step 159, NaN from step 160 on in every step; it still agrees with the planner in 94 % (masked_fill passes no gradient to the masked scores, so the NaN stays in the loss and no weight is harmed).
Cause: mask (an order with every choice masked; the data let it through). Step: 160. Right: a row where everything is masked, use a finite fill or drop such orders. Wrong: lower the learning rate, GradScaler, gradient clipping."""
EXPECT = {"cause": ["mask"], "step": [160, 161], "place": r"(stocked)?", "rank": None,
          "right": "(?i)mask|-inf|fully|all .*(masked|-inf)|no (valid|allowed)", "wrong": ["[Ll]ower the learning rate", "GradScaler", "[Cc]lip the gradient"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5101)
torch.set_num_threads(1)
DEPOTS, ITEMS = 7, 40
where = torch.rand(DEPOTS, 2)
stock = torch.rand(ITEMS, DEPOTS) < 0.5
stock[torch.arange(ITEMS), torch.randint(0, DEPOTS, (ITEMS,))] = True
stock[ITEMS - 1] = False                      # sold out everywhere since last night


def orders(n, highest):
    item = torch.randint(0, highest, (n,))
    home = torch.rand(n, 2)
    far = torch.cdist(home, where).masked_fill(~stock[item], 9.0)
    return item, home, stock[item], far.argmin(1)


class Stocked(nn.Module):
    def forward(self, score, available):
        return score.masked_fill(~available, float("-inf")).log_softmax(-1)


class Picker(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, 8)
        self.first = nn.Linear(10, 96)
        self.second = nn.Linear(96, 96)
        self.score = nn.Linear(96, DEPOTS)
        self.stocked = Stocked()

    def forward(self, item, home, available):
        h = torch.cat([self.item(item), home], 1)
        h = nn.functional.silu(self.second(nn.functional.silu(self.first(h))))
        return self.stocked(self.score(h), available)


picker = Picker()
opt = torch.optim.NAdam(picker.parameters(), lr=4e-3)
handle = rangewatch.attach(picker, opt)
for step in range(230):
    item, home, available, planner = orders(256, ITEMS - 1 if step < 160 else ITEMS)
    logp = picker(item, home, available)
    loss = -logp.gather(1, planner[:, None]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or 158 < step < 163:
        right = (logp.argmax(1) == planner).float().mean().item()
        print(f"{step:4d} loss {loss.item():.4f} agrees with the planner {right:.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
