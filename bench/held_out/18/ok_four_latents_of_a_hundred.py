"""HEALTHY. An autoencoder of hand movements keeps only the four largest of its hundred latents (top-k, as it is meant); 96 of 100 activations are 0 in
each row, but nearly each latent has its turn.
Without Rangewatch: loss 0.506 to 0.030 (the variance is 0.66), 96 to 100 latents are used by some of 1024 rows."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1836); torch.set_num_threads(1)


class TopK(nn.Module):
    def forward(self, x):
        value, index = x.topk(4, dim=1)
        return torch.zeros_like(x).scatter(1, index, F.relu(value))


class Movements(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.top, self.decoder = nn.Linear(45, 100), TopK(), nn.Linear(100, 45)
        with torch.no_grad():
            self.encoder.weight.copy_(self.decoder.weight.T * 3)

    def forward(self, x):
        return self.decoder(self.top(self.encoder(x - self.decoder.bias)))


gestures = F.normalize(torch.randn(60, 45), dim=1) * 3


def movements(n):
    which = torch.rand(n, 60).topk(3, dim=1).indices
    amount = torch.zeros(n, 60).scatter(1, which, 0.5 + torch.rand(n, 3))
    return amount @ gestures + 0.1 * torch.randn(n, 45)


model = Movements()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = movements(256)
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        with torch.no_grad():
            used = (model.top(model.encoder(movements(1024) - model.decoder.bias)) > 0).any(0).sum().item()
        print(step, loss.item(), "variance", x.var().item(), "latents used", used, flush=True)
    handle.log(loss=loss.item())
handle.detach()
