"""A Wasserstein critic of a ring of points against a small generator, in float16 autocast with a GradScaler. FAULT from step 0 on: the critic has neither a penalty nor clipped weights,
so its output grows from the first step on, until it exceeds 65504 in float16.
Without Rangewatch: the loss of the critic is -1,363 at step 10, -27,760 at step 40, -inf at step 50, NaN at step 60 and after; the scale falls from 64 to 0.25.
Cause: forward_arithmetic (overflow), regularization (the missing penalty) or learning_rate. Step: from the growth on to the overflow at step 41 to 50. Right: grow / overflow /
float16 / penalty / clip / rate. Wrong: attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "regularization", "learning_rate", "loss_scale"], "step": [0, 60], "place": None, "rank": 0,
          "right": "(?i)grow|overflow|float16|65504|regulari|penalty|learning rate|weight", "wrong": ["attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2420); torch.set_num_threads(1)


class Duel(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))

    def forward(self, points):
        return self.critic(points)


model = Duel()
optimizer = torch.optim.RMSprop([{"params": model.critic.parameters(), "lr": 3e-3}, {"params": model.maker.parameters(), "lr": 2e-4}])
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1000)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    angle = 6.2832 * torch.rand(64)
    real = 2 * torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(64, 2)
    with torch.autocast("cpu", torch.float16):
        fake = model.maker(torch.randn(64, 8))
        critic_loss = (model(fake.detach()) - model(real)).float().mean()
        for p in model.critic.parameters():
            p.requires_grad_(False)
        maker_loss = -model(fake).float().mean()
        for p in model.critic.parameters():
            p.requires_grad_(True)
    optimizer.zero_grad()
    scaler.scale(critic_loss + maker_loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == 199:
        print(step, critic_loss.item(), maker_loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=critic_loss.item(), maker=maker_loss.item())
handle.detach()
