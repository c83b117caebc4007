"""A convolutional autoencoder of pictures of coins, trained by Nesterov SGD whose momentum is raised linearly by a schedule without an end. FAULT at
step 80: 0.60 + 0.005 * step passes 1 there, and the velocity no longer fades but grows by a constant factor.
Without Rangewatch: loss 0.64 to 0.50 at step 80 and 0.33 at step 100 (momentum 1.10), 0.76 at step 110, 17.7 at step 130, NaN from about step 140 on.
Cause: optimizer (the momentum), or the learning rate. Step: 80, visible later. Right: momentum below 1. Wrong: GradScaler, mask, batch data."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [79, 150], "place": None, "rank": 0,
          "right": "(?i)momentum|optimi[sz]er|learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2102)
torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij"))


def coins(n):
    middle = 0.6 * (torch.rand(n, 2, 1, 1) - 0.5)
    radius = 0.3 + 0.4 * torch.rand(n, 1, 1)
    distance = (grid - middle).square().sum(1).sqrt()
    return torch.sigmoid((radius - distance) * 15)[:, None]


encoder = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.Linear(512, 12))
decoder = nn.Sequential(nn.Linear(12, 512), nn.ELU(), nn.Unflatten(1, (32, 4, 4)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ELU(),
                        nn.ConvTranspose2d(16, 1, 4, 2, 1))
coder = nn.Sequential(encoder, decoder)
optimizer = torch.optim.SGD(coder.parameters(), lr=0.02, momentum=0.6, nesterov=True)
handle = rangewatch.attach(coder, optimizer)
for step in range(200):
    for group in optimizer.param_groups:
        group["momentum"] = 0.60 + 0.005 * step
    x = coins(32)
    loss = F.binary_cross_entropy_with_logits(coder(x), x)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 199:
        print(step, loss.item(), "momentum", optimizer.param_groups[0]["momentum"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
