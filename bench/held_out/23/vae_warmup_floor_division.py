"""A variational autoencoder of small glyphs; encoder and decoder have each a warm-up of their own in LambdaLR. FAULT from step 0 on: the encoder's is
written (step + 1) // 500 instead of min(1, (step + 1) / 500): the rate of its group is 0 in the whole training and the encoder stays as it was drawn.
Without Rangewatch: loss 102 at step 0, 82 at step 40 and 82 at step 239, the KL term 0.09 throughout, the encoder moved by exactly 0; with the
right warm-up the loss is 30 and the KL term 8 at step 239.
Causes: learning_rate (0 in a group), optimizer. Right: learning rate / group / schedule. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [0, 239], "place": "(encode.*)?", "rank": 0, "least": "info",
          "right": "(?i)learning rate|lr|group|schedul|frozen", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2303); torch.set_num_threads(1)
strokes = (torch.rand(10, 144) < 0.3).float()


class GlyphVAE(nn.Module):
    def __init__(self, latent=6):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(144, 96), nn.ELU(), nn.Linear(96, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent, 96), nn.ELU(), nn.Linear(96, 144))

    def forward(self, x):
        mean, logvar = self.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.decode(z), -0.5 * (1 + logvar - mean ** 2 - logvar.exp()).sum(1).mean()


model = GlyphVAE()
optimizer = torch.optim.Adam([{"params": model.encode.parameters(), "lr": 3e-3}, {"params": model.decode.parameters(), "lr": 3e-3}])
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda s: (s + 1) // 500, lambda s: min(1.0, (s + 1) / 20)])
handle = rangewatch.attach(model, optimizer)
first = model.encode[0].weight.detach().clone()
for step in range(240):
    x = strokes[torch.randint(0, 10, (64,))]
    x = (x + (torch.rand_like(x) < 0.03).float()) % 2
    logits, kl = model(x)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x) + kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 40 == 0 or step == 239:
        print(step, loss.item(), "kl", kl.item(), "encoder moved", (model.encode[0].weight - first).abs().max().item(), [g["lr"] for g in optimizer.param_groups], flush=True)
    handle.log(loss=loss.item(), kl=kl.item())
handle.detach()
