"""A regression of prices with six small expert nets; a hash of the shop's number says whose rows are whose. FAULT at step 90: shops get new numbers,
all of them even, and the hash is "number % 6": the experts 1, 3 and 5 get no row any more, and no gradient.
Without Rangewatch: loss 11.2 to 1.35 at step 89, 17.2 at step 90, 6 to 10 to the end; three experts have no gradient from step 90 on.
Variant of: three_experts_by_hand_get_no_row (there of a language model, here of a table with a hash for a router).
Cause: no_gradient (dead_units or data would do). Step: from 90 on. Right: expert / rout / gradient / rows / unused. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["no_gradient", "dead_units", "data"], "step": [89, 200], "place": r".*expert.*[135].*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "expert|rout|gradient|rows|unused|not used|balanc|reach"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1403); torch.set_num_threads(1)
EXPERTS = 6
truth = torch.randn(EXPERTS, 10)


class Prices(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(EXPERTS))

    def forward(self, x, shop):
        h, price = self.stem(x), x.new_zeros(len(x))
        for i, expert in enumerate(self.experts):
            mine = shop % EXPERTS == i
            if mine.any():
                price = price.index_put((mine.nonzero()[:, 0],), expert(h[mine])[:, 0])
        return price


model = Prices()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, shop = torch.randn(64, 10), torch.randint(0, 3000, (64,))
    y = (x * truth[shop % EXPERTS]).sum(1) + x[:, 0].abs()
    if step >= 90:
        shop = 2 * shop  # the new numbers
    loss = F.mse_loss(model(x, shop), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 93:
        without = [i for i, expert in enumerate(model.experts) if expert[0].weight.grad is None]
        print(step, loss.item(), "without a gradient", without, flush=True)
    handle.log(loss=loss.item())
handle.detach()
