"""A denoising score model on small shapes (it predicts the noise from the noisy shape and the level); a curriculum adds harder levels: only large
noise at first, where the noise is plain to see, then from steps 100 and 200 on smaller and smaller noise: the loss goes up at each stage and stays
up. HEALTHY.
Without Rangewatch: loss 1.09 to 0.11 at step 80, 0.32 at step 100, 0.15 at step 180, 0.35 at step 200, 0.23 to 0.28 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(839); torch.set_num_threads(1)
LOWEST = [1.0, 0.25, 0.06]


class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Linear(1, 96)
        self.one, self.two, self.three = nn.Linear(16, 96), nn.Linear(96, 96), nn.Linear(96, 16)

    def forward(self, x, sigma):
        c = self.level(sigma.log())
        h = F.silu(self.one(x / (1 + sigma ** 2).sqrt()) + c)
        return self.three(F.silu(self.two(h) + c))


def shapes(n):
    angle = torch.arange(8) * 0.785 + 6.283 * torch.rand(n, 1)
    radius = 1 + 0.3 * torch.sin(3 * angle)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], 1)


model = Score()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(330):
    lowest = torch.tensor(LOWEST[min(step // 100, 2)]).log()
    sigma = torch.exp(lowest + (1.4 - lowest) * torch.rand(128, 1))
    noise = torch.randn(128, 16)
    loss = F.mse_loss(model(shapes(128) + sigma * noise, sigma), noise)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    handle.log(loss=loss.item(), lowest=lowest.exp().item())
    if step % 20 == 0 or step % 100 < 3:
        print(step, loss.item(), flush=True)
handle.detach()
