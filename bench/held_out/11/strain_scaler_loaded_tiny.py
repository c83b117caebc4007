"""A convolutional net that estimates the strain of a bridge from its vibration, in float16 under autocast with a GradScaler. FAULT at step 100: the training is
resumed and with it the scaler, from a file in which the scale is 2 ** -26 (a bug had written its inverse): all gradients become 0 in float16.
Without Rangewatch: loss 1.31 to 0.042 at step 99; every gradient is exactly 0 from step 100 on (scale 1.5e-8), so that the weights come to a
stand; the loss stays at about 0.035 from step 120 on.
Variant of: loss_scales: every_gradient_is_zero.
Cause: loss_scale (or no_gradient). Step: 100. Right: scale / underflow / raise / growth. Wrong: rate, attention mask, clip."""
EXPECT = {"cause": ["loss_scale", "no_gradient"], "step": [99, 110], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "[Cc]lip the grad"],
          "right": "scale|underflow|GradScaler|bfloat16|growth"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1111); torch.set_num_threads(1)
time = torch.arange(64.0)


class StrainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 16, 7, stride=2), nn.GELU(), nn.Conv1d(16, 32, 7, stride=2), nn.GELU(), nn.Conv1d(32, 32, 7, stride=2),
                                  nn.GELU())
        self.strain = nn.Linear(32, 1)

    def forward(self, x):
        return self.strain(self.body(x).mean(2))[:, 0]


def bridges(n):
    high, pitch = 0.3 + torch.rand(n), 0.1 + 0.6 * torch.rand(n)
    wave = high[:, None] * torch.sin(pitch[:, None] * time + 6.28 * torch.rand(n, 1))
    return wave[:, None] + 0.2 * torch.randn(n, 2, 64), 3 * high * pitch


model = StrainNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    if step == 100:
        scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0 ** -26})  # resumed
    x, y = bridges(16)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = F.mse_loss(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    largest = max(each.grad.abs().max().item() for each in model.parameters())
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 98 < step < 103:
        print(step, loss.item(), "scale", scaler.get_scale(), "largest scaled gradient", largest, flush=True)
    handle.log(loss=loss.item())
handle.detach()
