"""Six recurrent experts, each meant for parcels of one kind of handling, after a learned router. FAULT at step 90: the warm-up, in which each row goes to an
expert drawn at random, ends, and from then on the number of the expert is argmax // 3 (left over from an array of buckets): only experts 0 and 1 are called.
Without Rangewatch: loss 1.37 to 1.01 at step 89; experts 2 to 5 have no gradient from step 90 on, expert 1 neither in most steps from 120 on;
the loss goes on falling, to 0.13.
Variant of: exchanges: most_linear_experts_get_no_row_from_step_20_on.
Cause: no_gradient or dead_units. Step: 90. Place: experts 2 to 5 or the router. Right: expert / router / balance / no rows / unused / not called.
Wrong: rate, GradScaler, attention mask."""
EXPECT = {"cause": ["no_gradient", "dead_units"], "step": [89, 125], "place": ".*(expert|router).*", "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "expert|rout|balanc|row|unused|not called|not used|reach|graph|forward"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1106); torch.set_num_threads(1)
EXPERTS, KINDS = 6, 6
habit = torch.randn(KINDS, 8)


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, EXPERTS)
        self.experts = nn.ModuleList(nn.GRU(8, 16, batch_first=True) for _ in range(EXPERTS))
        self.head = nn.Linear(16, 4)
        self.warm = True

    def forward(self, x):
        share = self.router(x.mean(1)).softmax(1)
        chosen = torch.randint(0, EXPERTS, (x.shape[0],)) if self.warm else share.argmax(1) // 3
        out = x.new_zeros(x.shape[0], 16)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, share[rows, i, None] * 6 * expert(x[rows])[0][:, -1])
        return self.head(out)


def parcels(n):
    kind = torch.randint(0, KINDS, (n,))
    x = habit[kind][:, None] + torch.randn(n, 10, 8)
    return x, (x[:, -1, :2] > 0).float() @ torch.tensor([1.0, 2.0])


model = Sorter()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    model.warm = step < 90
    x, y = parcels(48)
    loss = F.cross_entropy(model(x), y.long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 93:
        without = [i for i, each in enumerate(model.experts) if each.weight_hh_l0.grad is None]
        print(step, loss.item(), "experts without a gradient", without, flush=True)
    handle.log(loss=loss.item())
handle.detach()
