"""A post-norm encoder (nn.TransformerEncoder, two layers) names the rank of each number in its row; Adam with a warm-up of 150 steps. FAULT from step 0: the warm-up is upside down,
warmup / (step + 1) and not (step + 1) / warmup: the rate begins at 150 times the 2e-3 that was meant and falls.
Without Rangewatch: loss 2.5 to 4.5 at step 1, then 2.08 (the guess of one of eight) to the end; 0.25 with the right warm-up.
Cause: learning_rate. Step: 0. Right: learning rate / warm-up. Wrong: GradScaler, attention mask, labels."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 8], "place": None, "rank": None,
          "right": "(?i)learning.rate|\\blr\\b|warm|schedul", "wrong": ["GradScaler", "attention mask", "[Ll]abels", "NaN in the input"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3312); torch.set_num_threads(1)
T, D, WARMUP = 8, 32, 150


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(1, D)
        layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.rank_of = nn.Linear(D, T)

    def forward(self, x):
        return self.rank_of(self.encoder(self.lift(x[..., None])))


net = Sorter()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: WARMUP / (s + 1) if s < WARMUP else 1.0)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x = torch.randn(48, T)
    y = x.argsort(1).argsort(1)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 5 or step == 219:
        print(step, loss.item(), "lr", warm_up.get_last_lr()[0], flush=True)
    warm_up.step()
    handle.log(loss=loss.item())
handle.detach()
