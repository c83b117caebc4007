"""A two-tower recommender, in-batch softmax, Adagrad. FAULT at step 150: new items arrive, the table of items is made longer by giving the embedding a
new Parameter with the old rows copied; the optimizer still holds the old one. From there on no row of the table changes any more, while users and
the towers train on. Without Rangewatch: loss 4.89 to 1.87 at step 149; 4.66 at step 150, then down to 1.80 by the towers and users alone; the
largest change of the table is 0.03 to 0.05 a step before, exactly 0 from step 150 on.
Report: huggingface/transformers#3532 (resized after the parameters were given to the optimizer: the wrong table is optimized),
hpcaitech/ColossalAI#5539.
Cause: optimizer (it does not hold that parameter). Place: items.weight. Right: give the new parameter to the optimizer. Wrong: learning rate, data,
precision, mask."""
EXPECT = {"cause": ["optimizer"], "step": [150, 299], "place": "items.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "leave out samples"],
          "right": "optimizer|add_param_group|param_groups"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(31); torch.set_num_threads(1)
USERS, OLD, NEW, D = 300, 200, 100, 24


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, D), nn.Embedding(OLD, D)
        self.user_tower = nn.Sequential(nn.Linear(D, 48), nn.ReLU(), nn.Linear(48, 24))
        self.item_tower = nn.Sequential(nn.Linear(D, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, user, item):
        a, b = self.user_tower(self.users(user)), self.item_tower(self.items(item))
        return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() / 0.1

    def grow(self, rows):
        table = torch.cat([self.items.weight.detach(), torch.randn(rows, D)])
        self.items.weight, self.items.num_embeddings = nn.Parameter(table), len(table)


taste, kind = torch.randint(0, 10, (USERS,)), torch.randint(0, 10, (OLD + NEW,))
fans = [(taste == k).nonzero().flatten() for k in range(10)]
model = Towers()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
watch = rangewatch.attach(model, optimizer)
for step in range(300):
    if step == 150:
        model.grow(NEW)
    item = torch.randint(0 if step < 150 else OLD // 2, OLD if step < 150 else OLD + NEW, (48,))
    user = torch.stack([fans[k][torch.randint(len(fans[k]), ())] for k in kind[item].tolist()])
    target = (kind[item][:, None] == kind[item][None]).float()
    loss = -(target / target.sum(1, keepdim=True) * model(user, item).log_softmax(1)).sum(1).mean()
    before = model.items.weight.detach().clone()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 148 <= step < 152:
        print(step, round(loss.item(), 4), "table moved", round((model.items.weight.detach() - before).abs().max().item(), 6))
