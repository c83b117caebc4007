"""A stacked denoising autoencoder trained greedily: each stage of 80 steps freezes the layers before it (requires_grad off), trains one new encoder
and decoder layer on the frozen features, with an optimizer that has every parameter; the last stage thaws all. The loss leaps at each stage.
HEALTHY.
Without Rangewatch: loss falls to 0.36 at step 79, 0.79 to 0.12 in the second stage, 0.53 to 0.14 in the third, 1.70 to 0.31 in the last."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(836); torch.set_num_threads(1)
SIZES = [48, 32, 20, 10]
mixing = torch.randn(8, 48)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoders = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in zip(SIZES, SIZES[1:]))
        self.decoders = nn.ModuleList(nn.Linear(b, a) for a, b in zip(SIZES, SIZES[1:]))

    def forward(self, x, stage):
        if stage == 3:
            h = x
            for encoder in self.encoders:
                h = encoder(h)
            for decoder in list(self.decoders)[::-1]:
                h = torch.tanh(decoder(h)) if decoder is not self.decoders[0] else decoder(h)
            return h, x
        for encoder in self.encoders[:stage]:
            x = encoder(x)
        return self.decoders[stage](self.encoders[stage](x + 0.1 * torch.randn_like(x))), x


model = Stack()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(320):
    stage = step // 80
    if step % 80 == 0:
        for i, (encoder, decoder) in enumerate(zip(model.encoders, model.decoders)):
            for p in [*encoder.parameters(), *decoder.parameters()]:
                p.requires_grad_(i == stage or stage == 3)
    x = torch.sin(torch.randn(64, 8)) @ mixing
    out, wanted = model(x, stage)
    loss = F.mse_loss(out, wanted)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item(), stage=stage)
    if step % 20 == 0 or step % 80 in (1, 2, 79):
        print(step, loss.item(), flush=True)
handle.detach()
