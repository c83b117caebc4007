"""A net that takes the noise out of heart beats; noise and beats are drawn afresh for each batch, so that no two epochs should be alike. FAULT from step 15
on: torch.manual_seed(7) stands at the top of each epoch, "for reproducibility"; each epoch of 15 batches is the first one again, and is learned by heart.
Without Rangewatch: training loss 0.028 to 0.0016, validation 0.0225 after two epochs, 0.0201 after fifteen; without the seed 0.0150 and 0.0148.
Cause: data (the same batches again), or eval / regularization (a gap to validation), or none. Step: 15 on. Right: seed / same / repeat / random / validation.
Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data", "regularization", "eval", "", "(none)"], "step": [14, 225], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)seed|same|repeat|random|overfit|shuffl|generator", "least": "info"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2027); torch.set_num_threads(1)
time = torch.linspace(0, 1, 64)


def beats(n):
    at, wide, high = 0.3 + 0.4 * torch.rand(n, 1), 0.01 + 0.04 * torch.rand(n, 1), 0.5 + torch.rand(n, 1)
    clean = high * torch.exp(-((time - at) ** 2) / wide**2) - 0.3 * high * torch.exp(-((time - at - 0.15) ** 2) / 0.002)
    return clean + 0.5 * torch.randn(n, 64), clean


model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
held_out = beats(256)
for epoch in range(15):
    torch.manual_seed(7)
    for _ in range(15):
        noisy, clean = beats(12)
        loss = F.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
    model.eval()
    with torch.no_grad():
        value = F.mse_loss(model(held_out[0]), held_out[1])
    model.train()
    handle.log(validation_loss=value.item())
    print(epoch, loss.item(), "validation", value.item(), flush=True)
handle.detach()
