"""A conv autoencoder that fills holes in patterns, SGD of a small rate, with an exponential average of its weights (0.99) for the tests. FAULT at step 120:
the test puts the average into the model and the line that puts the trained weights back was lost: the training goes on from the average.
Without Rangewatch: loss 0.50 to 0.155 at step 119, 0.451 at step 120, 0.31 at step 140; it takes to step 160 to come back to 0.159.
Cause: eval or weight. Step: 120 (the first step after the test). Right: put the weights back after the test. Wrong: GradScaler, lower the rate, mask."""
EXPECT = {"cause": ["eval", "weight"], "step": [119, 122], "place": None, "rank": 0,
          "right": "(?i)average|EMA|restor|swap|put back|back into|overwrit|evaluat|checkpoint|copied|outside",
          "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2511); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))


def patterns(n):
    k = torch.rand(n, 2, 1, 1) * 1.2
    full = torch.sin((k * grid).sum(1) + 6.28 * torch.rand(n, 1, 1))[:, None]
    holed = full.clone()
    i, j = torch.randint(0, 11, (2,)).tolist()
    holed[:, :, i:i + 5, j:j + 5] = 0
    return holed, full


filler = nn.Sequential(
    nn.Conv2d(1, 24, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(24, 48, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(48, 48, 3, 1, 1), nn.LeakyReLU(0.1),
    nn.ConvTranspose2d(48, 24, 4, 2, 1), nn.LeakyReLU(0.1), nn.ConvTranspose2d(24, 1, 4, 2, 1))
average = copy.deepcopy(filler)
optimizer = torch.optim.SGD(filler.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(filler, optimizer)


def test():
    filler.load_state_dict(average.state_dict())
    filler.eval()
    with torch.no_grad():
        x, y = patterns(64)
        error = F.mse_loss(filler(x), y).item()
    filler.train()
    return error


for step in range(200):
    if step == 120:
        print("test", test())
    x, y = patterns(32)
    loss = F.mse_loss(filler(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), filler.parameters(), strict=True):
            a.lerp_(p, 0.01)
    if step % 20 == 0 or 117 < step < 124 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
