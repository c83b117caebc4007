"""Path loss of radio links from carrier frequency, distance and antenna heights: float64 MLP (softplus units), Adam, mse.
FAULT at step 0: nothing is standardised: the frequency goes in as hertz (0.7e9 to 6e9) beside heights of some metres; the first layer's sums are of the order 1e9 and the outputs with them.
Without Rangewatch: mse 2e16 at step 0, 3e11 at 100, 7e6 at 200, 4.6e3 at 275 (targets are of the order 1).
Cause: data (inputs of the order 1e9, not scaled). Step: from 0. Right: standardise the inputs (GHz, logarithms). Wrong: raise the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [0, 40], "place": None, "rank": None,
          "right": r"(?i)normali[sz]|standardi[sz]|scale|input|units|log", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import rangewatch

torch.manual_seed(6); torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


def links(n):
    hertz = 10 ** (8.85 + 0.93 * torch.rand(n, 1))
    metres = 10 ** (1.5 + 2 * torch.rand(n, 1))
    mast, handset = 10 + 40 * torch.rand(n, 1), 1 + 9 * torch.rand(n, 1)
    db = 20 * torch.log10(hertz) + 35 * torch.log10(metres) - 147.55 - 6 * torch.log10(mast * handset) + torch.randn(n, 1)
    return torch.cat([hertz, metres, mast, handset], 1), (db - 100) / 20


model = torch.nn.Sequential(
    torch.nn.Linear(4, 64), torch.nn.Softplus(),
    torch.nn.Linear(64, 64), torch.nn.Softplus(),
    torch.nn.Linear(64, 1))
adam = torch.optim.Adam(model.parameters(), lr=1e-3)
watch = rangewatch.attach(model, adam)
train_x, train_y = links(6400)
step = 0
for epoch in range(3):
    for rows in torch.randperm(6400).split(64):
        adam.zero_grad()
        loss = (model(train_x[rows]) - train_y[rows]).square().mean()
        loss.backward()
        adam.step()
        if step % 25 == 0:
            print(f"epoch {epoch} step {step} mse {loss.item():.4g}", flush=True)
        step += 1
watch.detach()
