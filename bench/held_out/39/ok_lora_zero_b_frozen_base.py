"""Adapters on a frozen convolution-free audio tagger: base pre-trained on tags of one room in the first lines, LoRA (B = 0) for another room, Adam on the adapters and the head only.
HEALTHY: 90 % of the weights are frozen and get no gradient, in step 0 the gradient of every `down` is exactly 0 (because `up` is 0): that is how LoRA begins. The optimizer is built after the injection.
Without Rangewatch: loss 0.30 to 0.002, accuracy 0.91 to 1.00; the gradient of the first down is 0.0000 at step 0 and 0.06 at 25."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(3131); torch.set_num_threads(1)
TAGS, BANDS = 6, 24
spectrum = torch.randn(TAGS, BANDS)
room_b = torch.eye(BANDS)[torch.randperm(BANDS)] * 0.6 + 0.4 * torch.eye(BANDS)


def clips(n, other_room=False):
    tag = torch.randint(0, TAGS, (n,))
    x = spectrum[tag] + 0.6 * torch.randn(n, BANDS)
    return (x @ room_b if other_room else x), tag


class Adapter(nn.Module):
    def __init__(self, inner, rank=3):
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.inner(x) + 2.0 * self.up(self.down(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(BANDS, 96), nn.Linear(96, 96), nn.Linear(96, 96)])
        self.tags = nn.Linear(96, TAGS)

    def forward(self, x):
        for layer in self.layers:
            x = F.hardswish(layer(x))
        return self.tags(x)


tagger = Tagger()
pre = torch.optim.Adam(tagger.parameters(), lr=2e-3)
for _ in range(120):
    x, y = clips(64)
    pre.zero_grad()
    F.cross_entropy(tagger(x), y).backward()
    pre.step()
for p in tagger.parameters():
    p.requires_grad = False
for i, layer in enumerate(tagger.layers):
    tagger.layers[i] = Adapter(layer)
tagger.tags.requires_grad_(True)
tuned = [p for p in tagger.parameters() if p.requires_grad]
adam = torch.optim.Adam(tuned, lr=2e-3)
handle = rangewatch.attach(tagger, adam)
for step in range(220):
    x, y = clips(64, other_room=True)
    out = tagger(x)
    loss = F.cross_entropy(out, y)
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 25 == 0 or step == 219:
        print(step, f"loss {loss.item():.4f} acc {(out.argmax(1) == y).float().mean().item():.2f} gradient of down {tagger.layers[0].down.weight.grad.norm().item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
