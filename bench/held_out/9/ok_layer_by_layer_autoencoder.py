"""A deep autoencoder trained layer by layer: each 80 steps the next pair of layers is added and those below are frozen, from step 240 on all are trained
together with a smaller rate; layers that are not in use yet have no gradient. The loss leaps at each addition. HEALTHY.
Without Rangewatch: loss 0.44 to 0.025 at step 79, 0.45 to 0.046 at step 159, 0.45 to 0.15 at step 239, 0.050 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(837); torch.set_num_threads(1)
SIZES = (40, 32, 16, 6)
basis = torch.randn(6, 40)


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoders = nn.ModuleList(nn.Linear(a, b) for a, b in zip(SIZES, SIZES[1:]))
        self.decoders = nn.ModuleList(nn.Linear(b, a) for a, b in zip(SIZES, SIZES[1:]))

    def forward(self, x, depth):
        for encoder in self.encoders[:depth]:
            x = torch.tanh(encoder(x))
        for i in reversed(range(depth)):
            x = self.decoders[i](x)
            x = torch.tanh(x) if i else x
        return x


model = Stacked()
optimizer = torch.optim.Adam([{"params": [*e.parameters(), *d.parameters()]} for e, d in zip(model.encoders, model.decoders)], lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(320):
    depth = min(step // 80, 2) + 1
    if step % 80 == 0:  # one more layer is trained, those below are frozen; from step 240 on all are trained together
        for i, layers in enumerate(zip(model.encoders, model.decoders)):
            for layer in layers:
                layer.requires_grad_(step == 240 or i == depth - 1)
        optimizer.param_groups[0]["lr"] = 1e-3 if step == 240 else 3e-3
    x = torch.tanh(torch.randn(64, 6) @ basis / 2) + 0.05 * torch.randn(64, 40)
    loss = F.mse_loss(model(x, depth), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (79, 159, 239, 319):
        print(step, loss.item(), "depth", depth, flush=True)
    handle.log(loss=loss.item())
handle.detach()
