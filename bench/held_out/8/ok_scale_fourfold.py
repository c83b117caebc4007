"""A speech tagger (temporal convolutions) in float16 autocast; the GradScaler starts at 16 and grows fourfold every 15 steps, so that it overshoots
now and then: single steps with Inf in the gradients are skipped, the scale is quartered. Gradients are clipped after unscale_. HEALTHY.
Without Rangewatch: loss 2.10 to 0.16; scale 16 to 2 ** 20 and back to 2 ** 18 again and again from step 105 on."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(835); torch.set_num_threads(1)
TAGS = 8
sound = torch.randn(TAGS, 16)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(16 if i == 0 else 48, 48, 3, padding=2 ** i, dilation=2 ** i) for i in range(3))
        self.tag = nn.Conv1d(48, TAGS, 1)

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.tag(x)


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=15)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(260):
    y = torch.randint(0, TAGS, (12, 6)).repeat_interleave(5, 1)
    x = sound[y].transpose(1, 2) + 1.8 * torch.randn(12, 16, 30)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = F.cross_entropy(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    handle.log(loss=loss.item())
    if step % 15 == 0:
        print(step, loss.item(), scaler.get_scale(), flush=True)
handle.detach()
