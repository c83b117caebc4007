"""A net that forecasts the tide from the hour and the moon; the plain mean of all weights since step 0 is kept for the report. FAULT at step 120: the report
copies the mean into the model and never puts the trained weights back; the training goes on from the mean, of which half is from the first steps.
Without Rangewatch: loss 1.22 to 0.022 at step 119, 0.56 at step 120, 0.75 at step 121, and it takes until step 170 to be back; 0.004 at the end.
Cause: weight (the weights were overwritten between two steps). Step: 120. Right: weights / average / overwritten / restore / evaluation.
Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [119, 122], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "weight|average|EMA|mean|overwrit|restor|changed|outside"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1601); torch.set_num_threads(1)


def tides(n):
    hour, moon = 48 * torch.rand(n), 6.2832 * torch.rand(n)
    height = (1.5 + 0.8 * torch.cos(moon)) * torch.sin(6.2832 * hour / 12.4 + moon) + 0.3 * torch.sin(6.2832 * hour / 24)
    waves = torch.stack([torch.sin(6.2832 * hour * k / 24.8) for k in range(1, 5)] + [torch.cos(6.2832 * hour * k / 24.8) for k in range(1, 5)], 1)
    return torch.cat((waves, moon.sin()[:, None], moon.cos()[:, None]), 1), height + 0.05 * torch.randn(n)


model = nn.Sequential(nn.Linear(10, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1), nn.Flatten(0))
mean = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 120:
        model.load_state_dict(mean.state_dict())
        model.eval()
        with torch.no_grad():
            x, y = tides(512)
            print("report", F.mse_loss(model(x), y).item())
        model.train()
    x, y = tides(128)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for average, p in zip(mean.parameters(), model.parameters(), strict=True):
            average.lerp_(p, 1 / (step + 2))
    if step % 20 == 0 or 117 < step < 124 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
