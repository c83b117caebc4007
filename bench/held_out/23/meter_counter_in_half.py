"""A net that reads counters of a works (values that only grow) and predicts the next ones, in float16 autocast with a GradScaler; the loss is relative, so
a larger counter is no harder. FAULT: the counters grow by 4 % a step and the predictions with them, until the output of the last layer exceeds 65504, the
end of float16, and is inf: at step 146. The inputs are still well below it.
Without Rangewatch: loss 1.69 to 0.017 at step 140 (largest output 51,680), inf at step 146 with a largest input of 30,663, inf or NaN to the
end; the scaler skips each step and its scale falls from 4096 to 2e-22.
Causes: forward_arithmetic (overflow of float16), data (the counters grow). Right: float16 / overflow / 65504 / float32 / scale. Wrong: mask, lower the rate."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [144, 148], "place": None, "rank": 0,
          "right": "(?i)float16|fp16|half|overflow|65504|float32|bfloat16|input|scale", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2317); torch.set_num_threads(1)


class Meter(nn.Module):
    """No biases, so that twice the input gives twice the output."""
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 64, bias=False), nn.Linear(64, 64, bias=False), nn.Linear(64, 3, bias=False)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


mixing = torch.rand(12, 3) / 2
model = Meter()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12, growth_interval=1000)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(230):
    level = 100.0 * 1.04 ** step
    x = level * torch.rand(48, 12)
    target = x @ mixing
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    loss = ((out.float() - target) / level).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or not loss.isfinite() and step < 150 or step == 229:
        print(step, loss.item(), "largest input", x.max().item(), "output", out.max().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
