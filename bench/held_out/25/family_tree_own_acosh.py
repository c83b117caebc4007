"""Points of a family tree in the hyperboloid model, whose distance is acosh(u) with an own backward, 1 / sqrt(u^2 - 1). FAULT at step 105: the pairs are
drawn with replacement from then on, so that a person is paired with himself: u is 1, the forward is right (0), the backward is 0 times inf: NaN.
Without Rangewatch: loss 23 to 5.3 at step 104, 5.35 at step 105 (its gradient is NaN), NaN from step 106 on.
Cause: backward_arithmetic (or the pairs in the data). Step: 105. Right: backward / autograd.Function / derivative / eps. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [104, 106], "place": None, "rank": 0,
          "right": "(?i)backward|Function|derivative|gradient|eps|clamp", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2517); torch.set_num_threads(1)


class Acosh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return torch.log(u + (u * u - 1).sqrt())

    @staticmethod
    def backward(ctx, g):
        u, = ctx.saved_tensors
        return g / (u * u - 1).sqrt()


class Distance(nn.Module):
    def forward(self, a, b):
        ta, tb = (1 + (a * a).sum(1)).sqrt(), (1 + (b * b).sum(1)).sqrt()
        u = (ta * tb - (a * b).sum(1)).clamp(min=1.0)
        return Acosh.apply(u)


class Tree(nn.Module):
    def __init__(self, people=400):
        super().__init__()
        self.people, self.lift, self.distance = nn.Embedding(people, 24), nn.Linear(24, 24), Distance()
        nn.init.normal_(self.people.weight, std=0.3)

    def forward(self, i, j):
        return self.distance(self.lift(self.people(i)), self.lift(self.people(j)))


def steps_apart(i, j):  # in a binary tree numbered from 1
    i, j, d = i + 1, j + 1, torch.zeros(len(i))
    for _ in range(20):
        d += (i != j).float()
        i, j = torch.where(i > j, i // 2, i), torch.where(j > i, j // 2, j)
    return d


net = Tree()
optimizer = torch.optim.RAdam(net.parameters(), lr=3e-2)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    i, j = torch.randint(0, 400, (2, 256))
    if step < 105:
        j = torch.where(i == j, (j + 1) % 400, j)
    else:
        j[::50] = i[::50]
    loss = ((net(i, j) - 0.5 * steps_apart(i, j)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108 or step == 169:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
