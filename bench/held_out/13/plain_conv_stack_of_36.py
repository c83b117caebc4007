"""A net of 36 convolutions with ReLU, one after another, no residual and no norm, each with torch's default initialization, tells glyphs. FAULT from step
0: both signal and gradients shrink at every layer; the last layer's bias is all that learns.
Without Rangewatch: loss 1.62 at step 0, 1.61 at the end (ln 5 is 1.61); gradient norms 1e-17 at the first layer, 1e-10 in the middle, 0.01 near the end.
Variant of: forty_layers_and_no_residual.
Cause: no_gradient / weight (the initialization) / backward_arithmetic. Step: from the start. Right: residual / norm / init / vanish. Wrong: lower the
learning rate, GradScaler, mask."""
EXPECT = {"cause": ["no_gradient", "weight", "backward_arithmetic"], "step": [0, 110], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "residual|norm|init|vanish|skip|deep|shrink"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1326); torch.set_num_threads(1)
GLYPHS = 5
glyph = torch.randn(GLYPHS, 1, 6, 6)


class GlyphNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU()]
        for _ in range(35):
            layers += [nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()]
        self.body, self.glyph = nn.Sequential(*layers), nn.Linear(12, GLYPHS)

    def forward(self, x):
        return self.glyph(self.body(x).mean((2, 3)))


def pages(n):
    y = torch.randint(0, GLYPHS, (n,))
    return glyph[y] + 0.5 * torch.randn(n, 1, 6, 6), y


model = GlyphNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = pages(16)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        norms = [model.body[i].weight.grad.norm().item() for i in (0, 36, 70)]
        print(step, loss.item(), "gradient norms", norms, flush=True)
    handle.log(loss=loss.item())
handle.detach()
