"""An MLP-Mixer over small pictures, in float16 under autocast with a GradScaler. FAULT at step 90: from there on a schedule sets the scale to 2 ** 34 after
each step, in place of update() without an argument: the gradients overflow each time and every step is skipped.
Without Rangewatch: loss 1.79 to 1.35 at step 90; from step 91 on no step is taken and the loss stays at 1.3 to 1.55; scale 1.7e10 throughout.
Variant of: loss_scales: gradients_of_a_gpt_overflow_at_every_step.
Cause: loss_scale. Step: 91 (the first with that scale). Right: scale / GradScaler / skipped / lower. Wrong: rate, attention mask, clip."""
EXPECT = {"cause": ["loss_scale"], "step": [90, 100], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "[Cc]lip the grad"],
          "right": "scale|GradScaler|skip|bfloat16|backoff"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1112); torch.set_num_threads(1)
TILES = 6
glaze = torch.randn(TILES, 16, 12)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(12, 24)
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(4))
        self.across = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))
        self.within = nn.ModuleList(nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)) for _ in range(2))
        self.tile = nn.Linear(24, TILES)

    def forward(self, x):
        h = self.enter(x)
        for i in range(2):
            h = h + self.across[i](self.norms[2 * i](h).mT).mT
            h = h + self.within[i](self.norms[2 * i + 1](h))
        return self.tile(h.mean(1))


def tiles(n):
    tile = torch.randint(0, TILES, (n,))
    return glaze[tile] + 3.5 * torch.randn(n, 16, 12), tile


model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    x, tile = tiles(32)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = F.cross_entropy(out.float(), tile)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    before = model.tile.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update(2.0 ** 34 if step >= 90 else None)
    if step % 20 == 0 or 88 < step < 94:
        print(step, loss.item(), "scale", scaler.get_scale(), "stepped", not torch.equal(before, model.tile.weight), flush=True)
    handle.log(loss=loss.item())
handle.detach()
