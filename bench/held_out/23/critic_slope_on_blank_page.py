"""A Wasserstein GAN of handwriting whose critic (ReLU, no biases) has a penalty on its slope at the real pages: (norm - 1)^2, the norm written as the root
of the sum of squares. FAULT at step 115: a blank page (all 0) is among the real ones; there the slope is exactly 0 and the derivative of the root is 1/0.
Without Rangewatch: the distance of the mean pages falls from 3.9 to 1.1; the loss of step 115 is still a number (-3.9), all is NaN from step 116 on.
Causes: backward_arithmetic (root at 0), data (the blank page), regularization (the penalty). Right: sqrt / norm / epsilon / zero. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "data", "regularization"], "step": [114, 116], "place": None, "rank": 0,
          "right": "(?i)sqrt|root|norm|eps|zero|divi|backward", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2306); torch.set_num_threads(1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(100, 96, bias=False), nn.Linear(96, 96, bias=False)
        self.score = nn.Linear(96, 1, bias=False)

    def forward(self, x):
        return self.score(torch.relu(self.b(torch.relu(self.a(x)))))[:, 0]


lines = torch.randn(5, 100).relu()
writer = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 100), nn.Softplus())
critic = Critic()
optimizer_w = torch.optim.Adam(writer.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
handle = rangewatch.attach(critic, optimizer)
for step in range(200):
    real = lines[torch.randint(0, 5, (32,))] * (0.8 + 0.4 * torch.rand(32, 1))
    if step == 115:
        real[20] = 0.0
    real.requires_grad_()
    fake = writer(torch.randn(32, 8))
    score = critic(real)
    slope, = torch.autograd.grad(score.sum(), real, create_graph=True)
    penalty = ((slope.pow(2).sum(1).sqrt() - 1) ** 2).mean()
    loss = critic(fake.detach()).mean() - score.mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_w = -critic(fake).mean()
    optimizer_w.zero_grad()
    loss_w.backward()
    optimizer_w.step()
    if step % 20 == 0 or 113 < step < 118:
        print(step, loss.item(), "penalty", penalty.item(), "distance", (fake.mean(0) - real.mean(0)).norm().item(), flush=True)
    handle.log(loss=loss.item(), loss_writer=loss_w.item())
handle.detach()
