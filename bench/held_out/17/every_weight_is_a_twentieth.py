"""A net with two hidden layers that gives the height of a landscape over a map (four hills and two lakes). FAULT at step 0: a port of an old program
sets each weight to 0.05 and each bias to 0; all units of a layer get the same gradient and stay equal to one another, so each layer has one unit in truth.
Without Rangewatch: loss 0.94 to 0.39 at step 20, then 0.26 to 0.37 to the end; the rows of the second layer differ by 0.0 at each step; with the usual
initial weights it is 0.08 at the end.
Cause: weight (the initial weights; none need be named). Step: from 0 on. Right: initial / symmetry / equal units. Wrong: GradScaler, mask, NaN."""
EXPECT = {"cause": ["weight", ""], "step": [0, 239], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "initial|symmetr|identical|equal|same (value|number|weight|gradient)|constant"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1606); torch.set_num_threads(1)
places = torch.tensor([[-1.0, -1.0], [1.0, 0.8], [0.9, -1.1], [-0.8, 1.0], [0.0, 0.0], [-1.5, 0.1]])
heights = torch.tensor([1.5, 2.0, 1.0, 1.8, -1.5, -1.0])


def survey(n):
    xy = 4 * torch.rand(n, 2) - 2
    far = ((xy[:, None] - places) ** 2).sum(2)
    return xy, (heights * torch.exp(-3 * far)).sum(1, keepdim=True)


model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.constant_(layer.weight, 0.05)
        nn.init.zeros_(layer.bias)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    xy, height = survey(256)
    loss = F.mse_loss(model(xy), height)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "spread of the rows", model[2].weight.std(0).max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
