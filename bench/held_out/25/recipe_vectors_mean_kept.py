"""Bags of ingredients that tell the cuisine of a recipe; a running mean of the vectors of the ingredients since the start is kept for the tests. FAULT at step
110: the test lends the mean to the table of ingredients and does not give the trained vectors back.
Without Rangewatch: loss 2.08 to 0.465 at step 109, 1.04 at step 110, 1.35 at step 112, 0.78 at step 120, 0.47 only at step 160.
Cause: eval or weight. Step: 110 (the first step after the test). Place: the table. Right: put back / average / outside. Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["eval", "weight"], "step": [109, 113], "place": "ingredients.*", "rank": 0,
          "right": "(?i)average|mean|EMA|restor|swap|put back|outside|overwrit|evaluat|copied|checkpoint",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2529); torch.set_num_threads(1)
FOODS, CUISINES = 500, 8
home = torch.randint(0, CUISINES, (FOODS,))


class Recipes(nn.Module):
    def __init__(self):
        super().__init__()
        self.ingredients = nn.EmbeddingBag(FOODS, 32, mode="mean")
        self.judge = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CUISINES))

    def forward(self, x):
        return self.judge(self.ingredients(x))


def recipes(n):
    x = torch.randint(0, FOODS, (n, 9))
    votes = F.one_hot(home[x], CUISINES).sum(1) + 0.01 * torch.arange(CUISINES)
    return x, votes.argmax(1)


net = Recipes()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
handle = rangewatch.attach(net, optimizer)
mean, seen = net.ingredients.weight.detach().clone(), 1


@torch.no_grad()
def test():
    net.eval()
    net.ingredients.weight.copy_(mean)
    x, y = recipes(300)
    error = F.cross_entropy(net(x), y).item()
    net.train()
    return error


for step in range(190):
    if step == 110:
        print("test", test())
    x, y = recipes(256)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        seen += 1
        mean += (net.ingredients.weight - mean) / seen
    if step % 20 == 0 or 107 < step < 114 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
