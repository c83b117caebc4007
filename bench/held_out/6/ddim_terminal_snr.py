"""A denoiser of points on a circle that predicts noise, with a small loss on the clean point it implies. FAULT from step 100 on: the second stage rescales
the schedule to a terminal signal of zero; for t = 49 the clean point is divided by sqrt(0). It takes until step 102 for a batch to hold t = 49.
Without Rangewatch: loss 0.97 to 0.46 at step 99, 0.41 and 0.33 at steps 100 and 101, Inf at step 102, NaN from step 103 on.
Report: huggingface/diffusers#3851 (epsilon prediction with rescale_betas_zero_snr divides by zero; when sampling there), bghira/SimpleTuner#187.
Cause: forward arithmetic. Step: 102. Right: division by zero. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [102, 103], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "divi|zero|eps|operation|non-finite|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(613); torch.set_num_threads(1)
STEPS = 50
alphas = torch.cumprod(1 - torch.linspace(1e-3, 0.12, STEPS), 0)
root = alphas.sqrt()
rescaled = ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2  # the last has no signal left


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS, 32)
        self.inside = nn.Linear(2, 64)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
        self.mix = nn.Linear(32, 64)

    def forward(self, x, t, table):
        eps = self.body(self.inside(x) + self.mix(self.time(t)))
        a = table[t][:, None]
        return eps, (x - (1 - a).sqrt() * eps) / a.sqrt()


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    angle = 6.28 * torch.rand(128)
    clean = torch.stack([angle.cos(), angle.sin()], 1) + 0.03 * torch.randn(128, 2)
    table = rescaled if step >= 100 else alphas  # second stage: rescale_betas_zero_snr
    t, noise = torch.randint(0, STEPS, (128,)), torch.randn(128, 2)
    a = table[t][:, None]
    eps, clean_hat = model(a.sqrt() * clean + (1 - a).sqrt() * noise, t, table)
    loss = F.mse_loss(eps, noise) + 0.05 * F.smooth_l1_loss(clean_hat, clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 105:
        print(step, loss.item(), clean_hat.abs().max().item(), (t == STEPS - 1).sum().item(), flush=True)
handle.detach()
